/* Memory as a case describes it: the pool, the host tier, and where each group's bytes lie. */
#ifndef CACHE_H
#define CACHE_H

#include "json.h"

#include <stddef.h>
#include <stdint.h>

struct area {
    uint8_t *bytes;
    size_t size;
};

/* Where a group's content lies. Places are of block 0; block b adds b times the byte's stride. */
struct group {
    size_t slots, row_bytes, image_bytes;
    size_t *cells;        /* [slot][row byte]: place in the pool */
    size_t *strides;      /* [row byte] */
    size_t *image;        /* [byte]: place in the pool, page by page in the order of places */
    size_t *image_stride; /* [byte] */
    size_t *image_host;   /* [byte]: offset in a host row, of part 0 */
    size_t *image_part;   /* [byte]: what each part adds to it */
};

struct cache {
    struct area pool, host;
    size_t host_row_bytes, group_count;
    struct group *groups;
};

/* Both areas as they are at birth, and the places that a case's maps name. */
struct cache load_cache(const struct json *test);
void free_cache(struct cache *cache);

/* A byte of an area; ends the program where there is none. */
uint8_t *at(struct area *area, size_t place);
/* A byte of a slot's row. */
uint8_t *cell_byte(struct cache *cache, const struct group *group, size_t block, size_t slot,
                   size_t byte);

/* Zeroed memory for so many things. */
void *memory(size_t count, size_t size);

#endif
