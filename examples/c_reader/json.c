#include "json.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *path, *at, *end;

void fail(const char *what, const char *name)
{
    fprintf(stderr, "reader: %s: %s\n", name, what);
    exit(2);
}

static void *grown(void *memory, size_t bytes)
{
    void *larger = realloc(memory, bytes);
    if (!larger)
        fail("no memory", path);
    return larger;
}

static char peek(void)
{
    while (at < end && isspace((unsigned char)*at))
        at++;
    return at < end ? *at : '\0';
}

static void expect(char c)
{
    if (peek() != c)
        fail("no JSON", path);
    at++;
}

static char *parse_text(void)
{
    size_t length = 0;
    char *text = grown(NULL, 1);
    expect('"');
    while (at < end && *at != '"') {
        char c = *at++;
        if (c == '\\' && at < end) {
            c = *at++;
            if (c != '"' && c != '\\' && c != '/')
                fail("an escape that this reader does not know", path);
        }
        text = grown(text, length + 2);
        text[length++] = c;
    }
    text[length] = '\0';
    expect('"');
    return text;
}

static struct json parse(void);

static struct json parse_members(char open, char close)
{
    struct json value = {open == '{' ? JSON_OBJECT : JSON_LIST, 0, NULL, 0, NULL, NULL};
    size_t room = 0;
    expect(open);
    while (peek() != close) {
        if (value.count)
            expect(',');
        if (value.count == room) {
            room = room ? 2 * room : 4;
            value.items = grown(value.items, room * sizeof *value.items);
            value.keys = grown(value.keys, room * sizeof *value.keys);
        }
        value.keys[value.count] = NULL;
        if (open == '{') {
            value.keys[value.count] = parse_text();
            expect(':');
        }
        value.items[value.count] = parse();
        value.count++;
    }
    expect(close);
    return value;
}

static int word(const char *name)
{
    size_t length = strlen(name);
    if ((size_t)(end - at) < length || strncmp(at, name, length))
        return 0;
    at += length;
    return 1;
}

static struct json parse(void)
{
    struct json value = {JSON_NULL, 0, NULL, 0, NULL, NULL};
    char c = peek();
    if (c == '{')
        return parse_members('{', '}');
    if (c == '[')
        return parse_members('[', ']');
    if (c == '"') {
        value.kind = JSON_TEXT;
        value.text = parse_text();
    } else if (word("true") || word("false")) {
        value.kind = JSON_BOOL;
        value.number = at[-2] == 'u';
    } else if (!word("null")) {
        char *after;
        value.kind = JSON_NUMBER;
        value.number = strtoll(at, &after, 10);
        if (after == at)
            fail("no JSON", path);
        at = after;
        while (at < end && (isdigit((unsigned char)*at) || strchr(".eE+-", *at)))
            at++; /* the rest of a fraction, which nobody asks for */
    }
    return value;
}

struct json json_load(const char *name)
{
    FILE *file = fopen(name, "rb");
    size_t size = 0, got;
    char *data = NULL;
    struct json value;
    path = name;
    if (!file)
        fail("cannot be opened", name);
    do {
        data = grown(data, size + 65537);
        got = fread(data + size, 1, 65536, file);
        size += got;
    } while (got);
    fclose(file);
    data[size] = '\0';
    at = data;
    end = data + size;
    value = parse();
    if (peek())
        fail("more than one JSON value", name);
    free(data);
    return value;
}

void json_free(struct json *value)
{
    for (size_t i = 0; i < value->count; i++) {
        json_free(&value->items[i]);
        free(value->keys[i]);
    }
    free(value->items);
    free(value->keys);
    free(value->text);
}

const struct json *json_find(const struct json *object, const char *key)
{
    for (size_t i = 0; object->kind == JSON_OBJECT && i < object->count; i++)
        if (!strcmp(object->keys[i], key))
            return &object->items[i];
    return NULL;
}

const struct json *json_get(const struct json *object, const char *key)
{
    const struct json *found = json_find(object, key);
    if (!found)
        fail("a key is missing", key);
    return found;
}

long long json_number(const struct json *object, const char *key)
{
    return json_get(object, key)->number;
}

const char *json_text(const struct json *object, const char *key)
{
    const struct json *found = json_get(object, key);
    if (found->kind != JSON_TEXT)
        fail("no text", key);
    return found->text;
}
