#include "cache.h"

#include <stdlib.h>
#include <string.h>

void *memory(size_t count, size_t size)
{
    void *found = calloc(count ? count : 1, size);
    if (!found)
        fail("no memory", "cache");
    return found;
}

uint8_t *at(struct area *area, size_t place)
{
    if (place >= area->size)
        fail("a byte outside the area", "map");
    return area->bytes + place;
}

/* What an area holds at birth. */
static void poison(struct area *area, uint64_t number)
{
    const uint64_t factor = 0xd6e8feb86659fd93, golden = 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < area->size; i++) {
        uint64_t word = i / 8 - (2 * number + 1) * golden;
        word = (word ^ word >> 32) * factor;
        word = (word ^ word >> 32) * factor;
        word ^= word >> 32;
        area->bytes[i] = (uint8_t)(word >> i % 8 * 8);
    }
}

/* Fill one row of a map's places: those of a slot, of all layers and heads, field by field. */
static size_t places_of_slot(const struct json *map, size_t slot, size_t *places)
{
    const struct json *fields = json_get(map, "fields");
    const struct json *first = json_get(&fields->items[0], "pieces");
    size_t filled = 0;
    for (size_t layer = 0; layer < first->count; layer++)
        for (size_t head = 0; head < first->items[layer].count; head++)
            for (size_t f = 0; f < fields->count; f++) {
                const struct json *pieces = json_get(&fields->items[f], "pieces");
                pieces = &pieces->items[layer].items[head].items[slot];
                for (size_t i = 0; i < pieces->count; i++) {
                    size_t start = (size_t)pieces->items[i].items[0].number;
                    size_t length = (size_t)pieces->items[i].items[1].number;
                    for (size_t byte = 0; byte < length; byte++, filled++)
                        if (places)
                            places[filled] = start + byte;
                }
            }
    return filled;
}

static int is_map(const struct json *map, size_t group, int of_block_0)
{
    return (size_t)json_number(map, "group") == group &&
           (json_number(map, "block") == 0) == of_block_0;
}

static int by_place(const void *one, const void *other)
{
    size_t a = *(const size_t *)one, b = *(const size_t *)other;
    return (a > b) - (a < b);
}

/* A group's page images: of each layer of a layer set all places, sorted. */
static void make_image(struct group *group, const struct json *maps, size_t number, size_t parts)
{
    size_t column = 0, done = 0, host = 0;
    for (size_t m = 0; m < maps->count; m++) {
        const struct json *map = &maps->items[m];
        size_t layers, layer_bytes, content;
        if (!is_map(map, number, 1))
            continue;
        layers = json_get(&json_get(map, "fields")->items[0], "pieces")->count;
        layer_bytes = places_of_slot(map, 0, NULL) / layers;
        content = layer_bytes * group->slots;
        for (size_t layer = 0; layer < layers; layer++, column += layer_bytes, done += content) {
            for (size_t slot = 0; slot < group->slots; slot++)
                memcpy(group->image + done + slot * layer_bytes,
                       group->cells + slot * group->row_bytes + column,
                       layer_bytes * sizeof *group->image);
            qsort(group->image + done, content, sizeof *group->image, by_place);
            for (size_t i = 0; i < content; i++) {
                group->image_stride[done + i] = group->strides[column];
                group->image_host[done + i] = host + layer * parts * content + i;
                group->image_part[done + i] = content;
            }
        }
        host += layers * parts * content;
    }
}

static void load_group(struct group *group, const struct json *maps, size_t number, size_t parts)
{
    size_t start = 0, last = 0;
    for (size_t m = 0; m < maps->count; m++)
        if (is_map(&maps->items[m], number, 1)) {
            const struct json *fields = json_get(&maps->items[m], "fields");
            group->slots = json_get(&fields->items[0], "pieces")->items[0].items[0].count;
            group->row_bytes += places_of_slot(&maps->items[m], 0, NULL);
        }
    group->image_bytes = group->slots * group->row_bytes;
    group->cells = memory(group->image_bytes, sizeof *group->cells);
    group->strides = memory(group->row_bytes, sizeof *group->strides);
    group->image = memory(group->image_bytes, sizeof *group->image);
    group->image_stride = memory(group->image_bytes, sizeof *group->image);
    group->image_host = memory(group->image_bytes, sizeof *group->image);
    group->image_part = memory(group->image_bytes, sizeof *group->image);
    for (size_t m = 0; m < maps->count; m++) {
        const struct json *map = &maps->items[m];
        if (is_map(map, number, 1)) {
            size_t bytes = 0;
            for (size_t slot = 0; slot < group->slots; slot++)
                bytes = places_of_slot(map, slot, group->cells + slot * group->row_bytes + start);
            start += bytes;
        } else if (is_map(map, number, 0)) {
            size_t block = (size_t)json_number(map, "block");
            size_t bytes = places_of_slot(map, 0, group->strides + last);
            for (size_t i = last; i < last + bytes; i++)
                group->strides[i] = (group->strides[i] - group->cells[i]) / block;
            last += bytes;
        }
    }
    make_image(group, maps, number, parts);
}

struct cache load_cache(const struct json *test)
{
    const struct json *geometry = json_get(test, "geometry"), *facts = json_get(test, "facts");
    const struct json *groups = json_get(geometry, "groups"), *host = json_get(geometry, "host");
    struct cache cache;
    cache.host_row_bytes = (size_t)json_number(facts, "host.row_bytes");
    cache.pool.size = (size_t)json_number(facts, "pool.physical_bytes");
    cache.host.size = cache.host_row_bytes * (size_t)json_number(facts, "host.worker_slots");
    cache.pool.bytes = memory(cache.pool.size, 1);
    cache.host.bytes = memory(cache.host.size, 1);
    poison(&cache.pool, 0);
    poison(&cache.host, 1);
    cache.group_count = groups->count;
    cache.groups = memory(groups->count, sizeof *cache.groups);
    for (size_t g = 0; g < groups->count; g++)
        load_group(&cache.groups[g], json_get(test, "maps"), g,
                   (size_t)json_number(host, "chunk_blocks"));
    return cache;
}

void free_cache(struct cache *cache)
{
    for (size_t g = 0; g < cache->group_count; g++) {
        struct group *group = &cache->groups[g];
        free(group->cells);
        free(group->strides);
        free(group->image);
        free(group->image_stride);
        free(group->image_host);
        free(group->image_part);
    }
    free(cache->groups);
    free(cache->pool.bytes);
    free(cache->host.bytes);
}

uint8_t *cell_byte(struct cache *cache, const struct group *group, size_t block, size_t slot,
                   size_t byte)
{
    size_t place = group->cells[slot * group->row_bytes + byte] + block * group->strides[byte];
    return at(&cache->pool, place);
}
