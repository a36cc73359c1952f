/* A tree of JSON values. Numbers are whole, as all numbers of vectors that a reader needs are. */
#ifndef JSON_H
#define JSON_H

#include <stddef.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_LIST, JSON_OBJECT };

struct json {
    enum json_kind kind;
    long long number;   /* of a number; 0 or 1 of a bool */
    char *text;         /* of a text */
    size_t count;       /* members of a list or an object */
    struct json *items; /* the members */
    char **keys;        /* their names, of an object */
};

/* Read a whole file. Ends the program with a message where it cannot be read or is no JSON. */
struct json json_load(const char *path);
void json_free(struct json *value);

/* The member of an object, or NULL. */
const struct json *json_find(const struct json *object, const char *key);
/* The member of an object; ends the program where there is none. */
const struct json *json_get(const struct json *object, const char *key);
long long json_number(const struct json *object, const char *key);
const char *json_text(const struct json *object, const char *key);

/* End the program with a message. */
void fail(const char *what, const char *name);

#endif
