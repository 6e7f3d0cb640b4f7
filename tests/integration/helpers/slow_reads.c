/* Put before the C library (LD_PRELOAD), it makes every read of a file named *.h5 take SLOW_READS_MILLISECONDS longer:
   a slow disk, for one rank. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void wait_if_slow(int descriptor) {
  const char* milliseconds = getenv("SLOW_READS_MILLISECONDS");
  if (milliseconds == NULL) return;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path);
  if (length > 3 && memcmp(path + length - 3, ".h5", 3) == 0) usleep(1000u * (unsigned)atoi(milliseconds));
}

ssize_t pread(int descriptor, void* buffer, size_t bytes, off_t offset) {
  static ssize_t (*next)(int, void*, size_t, off_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "pread");
  wait_if_slow(descriptor);
  return next(descriptor, buffer, bytes, offset);
}

ssize_t pread64(int descriptor, void* buffer, size_t bytes, off_t offset) { return pread(descriptor, buffer, bytes, offset); }

ssize_t read(int descriptor, void* buffer, size_t bytes) {
  static ssize_t (*next)(int, void*, size_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "read");
  wait_if_slow(descriptor);
  return next(descriptor, buffer, bytes);
}
