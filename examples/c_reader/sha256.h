#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>

/* SHA-256 of some bytes as 64 hex digits and a final zero. */
void sha256_hex(const uint8_t *data, size_t size, char hex[65]);

#endif
