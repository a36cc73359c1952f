/*
 * Reads the vectors of kvexact, applies their ops to memory of its own, and prints its answers.
 *
 *   kvexact vectors write --out vectors
 *   cc -std=c99 -Wall -Wextra -Werror -o reader *.c
 *   ./reader vectors > answers.json
 *   kvexact vectors check vectors answers.json
 *
 * It knows no format and no layout: where a byte lies it takes from a case's maps. It skips ops that
 * are to be refused, and has no encoders: of a write of values it stores the bytes that the case
 * names. Its digests are of its own memory. docs/vectors.md says what each key means.
 */
#include "cache.h"
#include "json.h"
#include "sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void store_rows(struct cache *cache, struct group *group, const struct json *slots,
                       const struct json *rows)
{
    for (size_t i = 0; i < slots->count; i++) {
        const struct json *slot = &slots->items[i];
        if (slot->kind == JSON_NULL)
            continue;
        for (size_t byte = 0; byte < group->row_bytes; byte++) {
            char digits[3] = {rows->items[i].text[2 * byte], rows->items[i].text[2 * byte + 1], 0};
            *cell_byte(cache, group, (size_t)slot->items[0].number,
                       (size_t)slot->items[1].number, byte) = (uint8_t)strtol(digits, NULL, 16);
        }
    }
}

static void print_rows(struct cache *cache, struct group *group, const struct json *slots)
{
    printf("\"returns\": [");
    for (size_t i = 0; i < slots->count; i++) {
        const struct json *slot = &slots->items[i];
        printf(i ? ", \"" : "\"");
        for (size_t byte = 0; byte < group->row_bytes; byte++)
            printf("%02x", slot->kind == JSON_NULL
                               ? 0
                               : *cell_byte(cache, group, (size_t)slot->items[0].number,
                                            (size_t)slot->items[1].number, byte));
        printf("\"");
    }
    printf("], ");
}

static void zero_blocks(struct cache *cache, struct group *group, const struct json *blocks)
{
    for (size_t b = 0; b < blocks->count; b++)
        for (size_t i = 0; i < group->image_bytes; i++) {
            size_t block = (size_t)blocks->items[b].number;
            *at(&cache->pool, group->image[i] + block * group->image_stride[i]) = 0;
        }
}

static void copy_blocks(struct cache *cache, struct group *group, const struct json *op)
{
    const struct json *pairs = json_get(op, "pairs"), *tokens = json_get(op, "tokens");
    size_t slots = tokens->kind == JSON_NULL ? group->slots : (size_t)tokens->number;
    size_t bytes = group->row_bytes;
#ifdef PLANTED_FAULT
    bytes--; /* the last byte of each slot stays behind */
#endif
    for (size_t p = 0; p < pairs->count; p++)
        for (size_t slot = 0; slot < slots; slot++)
            for (size_t byte = 0; byte < bytes; byte++) {
                size_t source = (size_t)pairs->items[p].items[0].number;
                size_t target = (size_t)pairs->items[p].items[1].number;
                *cell_byte(cache, group, target, slot, byte) =
                    *cell_byte(cache, group, source, slot, byte);
            }
}

static void transfer(struct cache *cache, const struct json *jobs, int to_host)
{
    for (size_t j = 0; j < jobs->count; j++) {
        struct group *group = &cache->groups[jobs->items[j].items[0].number];
        const struct json *moves = &jobs->items[j].items[1];
        for (size_t m = 0; m < moves->count; m++)
            for (size_t i = 0; i < group->image_bytes; i++) {
                const struct json *move = moves->items[m].items;
                size_t block = (size_t)move[0].number, row = (size_t)move[1].number;
                size_t part = (size_t)move[2].number;
                uint8_t *here = at(&cache->pool, group->image[i] + block * group->image_stride[i]);
                uint8_t *there = at(&cache->host, row * cache->host_row_bytes +
                                                      group->image_host[i] +
                                                      part * group->image_part[i]);
                *(to_host ? there : here) = *(to_host ? here : there);
            }
    }
}

/* Apply one op; of a read print what it returns. */
static void apply(struct cache *cache, const struct json *step)
{
    const struct json *op = json_get(step, "op");
    const char *kind = json_text(op, "op");
    const struct json *number = json_find(op, "group");
    struct group *group = &cache->groups[number ? number->number : 0];
    if (strcmp(json_text(step, "outcome"), "acted"))
        return;
    if (!strcmp(kind, "write_tokens") || !strcmp(kind, "write_values"))
        store_rows(cache, group, json_get(op, "slots"), json_get(step, "stores"));
    else if (!strcmp(kind, "zero") || (!strcmp(kind, "allocate") && json_number(op, "zero")))
        zero_blocks(cache, group, json_get(op, "blocks"));
    else if (!strcmp(kind, "copy_blocks"))
        copy_blocks(cache, group, op);
    else if (!strcmp(kind, "offload") || !strcmp(kind, "restore"))
        transfer(cache, json_get(op, "jobs"), *kind == 'o');
    else if (!strcmp(kind, "read"))
        print_rows(cache, group, json_get(op, "slots"));
}

static void print_digests(struct cache *cache)
{
    char pool[65], host[65];
    sha256_hex(cache->pool.bytes, cache->pool.size, pool);
    sha256_hex(cache->host.bytes, cache->host.size, host);
    printf("\"digests\": {\"pool\": \"%s\", \"host\": \"%s\"}", pool, host);
}

static void answer(const struct json *test)
{
    const struct json *ops = json_find(test, "ops");
    struct cache cache;
    if (!ops) {
        printf("{}");
        return;
    }
    cache = load_cache(test);
    printf("{");
    print_digests(&cache);
    printf(", \"ops\": [");
    for (size_t i = 0; i < ops->count; i++) {
        printf(i ? ",\n  {" : "\n  {");
        apply(&cache, &ops->items[i]);
        print_digests(&cache);
        printf("}");
    }
    printf("]}");
    free_cache(&cache);
}

static struct json load(const char *folder, const char *name)
{
    char *path = memory(strlen(folder) + strlen(name) + 2, 1);
    struct json found;
    sprintf(path, "%s/%s", folder, name);
    found = json_load(path);
    if (json_number(&found, "kvexact_vectors") != 1)
        fail("not of version 1, which is what this reader reads", path);
    free(path);
    return found;
}

int main(int count, char **arguments)
{
    struct json index;
    const struct json *cases;
    if (count != 2) {
        fprintf(stderr, "usage: reader DIR > ANSWERS\n");
        return 2;
    }
    index = load(arguments[1], "index.json");
    cases = json_get(&index, "cases");
    printf("{\"kvexact_answers\": 1, \"cases\": {");
    for (size_t i = 0; i < cases->count; i++) {
        struct json test = load(arguments[1], json_text(&cases->items[i], "file"));
        printf(i ? ",\n\"%s\": " : "\n\"%s\": ", json_text(&test, "name"));
        answer(&test);
        json_free(&test);
    }
    printf("}}\n");
    json_free(&index);
    return ferror(stdout) ? 2 : 0;
}
