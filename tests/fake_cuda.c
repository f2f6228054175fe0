/* The functions of libcuda that the server and the tests' clients call, over POSIX shared memory.

A handle is the name of the memory. FAKE_CUDA_DEVICES is the number of devices, all but the first without room.
As with the real one, bytes written to a device are there for others only after the context is synchronized.
Memory that is cut down to nothing cannot be copied any more; if one byte is left, copying breaks the context.
*/
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FINE = 0, INVALID = 1, NO_ROOM = 2, NO_DEVICE = 100, NO_CONTEXT = 201, MAPPED = 208, ILLEGAL = 700 };
typedef unsigned long long Address;
typedef struct { char name[64]; } Handle;
typedef struct { Handle handle; char *at; size_t size; int file, is_own; } Memory;

static Memory all[64];
static int broken, count;
static __thread void *current;
static struct { char *to, *data; size_t size; } late;

static void flush(void) {
    if (late.data) memcpy(late.to, late.data, late.size);
    free(late.data);
    late.data = NULL;
}

static Memory *find(Address address) {
    for (int i = 0; i < 64; i++)
        if (all[i].at && (Address)all[i].at <= address && address < (Address)all[i].at + all[i].size)
            return &all[i];
    return NULL;
}

static int map(const Handle *handle, int is_own, size_t size, Address *address) {
    Memory *one = NULL;
    for (int i = 0; i < 64; i++)
        if (!all[i].at) one = &all[i];
        else if (!is_own && !all[i].is_own && !memcmp(&all[i].handle, handle, 64)) return MAPPED;
    if (!one || strncmp(handle->name, "/fake_cuda_", 11) || handle->name[63]) return INVALID;
    int file = shm_open(handle->name, O_RDWR | (is_own ? O_CREAT : 0), 0600);
    struct stat found;
    if (file < 0 || (is_own && ftruncate(file, size)) || fstat(file, &found)) return INVALID;
    char *at = mmap(NULL, found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return INVALID;
    *one = (Memory){*handle, at, found.st_size, file, is_own};
    *address = (Address)at;
    return FINE;
}

static int forget(Address address) {
    Memory *one = find(address);
    if (!one) return INVALID;
    flush();
    if (one->is_own) {
        if (ftruncate(one->file, 0)) return INVALID;
        shm_unlink(one->handle.name);
    }
    munmap(one->at, one->size);
    close(one->file);
    one->at = NULL;
    return FINE;
}

static int copy(void *to, const void *from, Address address, size_t size) {
    Memory *one = find(address);
    struct stat found;
    if (broken) return broken;
    if (!current) return NO_CONTEXT;
    if (!one || address + size > (Address)one->at + one->size || fstat(one->file, &found)) return INVALID;
    if (found.st_size == 1) return broken = ILLEGAL;
    if ((size_t)found.st_size < one->size) return INVALID;
    flush();
    if ((Address)from == address) memcpy(to, from, size);
    else late.to = to, late.size = size, late.data = memcpy(malloc(size), from, size);
    return FINE;
}

static int devices(void) { char *given = getenv("FAKE_CUDA_DEVICES"); return given ? atoi(given) : 2; }

int cuInit(unsigned flags) { return devices() < 0 ? NO_DEVICE : FINE; }
int cuDeviceGetCount(int *n) { *n = devices(); return FINE; }
int cuDeviceGet(int *device, int number) { *device = number; return FINE; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = all; return device ? NO_ROOM : FINE; }
int cuCtxSetCurrent(void *context) { current = context; return FINE; }
int cuCtxSynchronize(void) { flush(); return broken; }
int cuIpcOpenMemHandle_v2(Address *address, Handle handle, unsigned flags) {
    return broken ? broken : !current ? NO_CONTEXT : flags != 1 ? INVALID : map(&handle, 0, 0, address);
}
int cuIpcCloseMemHandle(Address address) { return forget(address); }
int cuMemGetAddressRange_v2(Address *base, size_t *size, Address address) {
    Memory *one = find(address);
    if (!one || !current) return INVALID;
    *base = (Address)one->at;
    *size = one->size;
    return FINE;
}
int cuMemcpyDtoH_v2(void *to, Address from, size_t size) { return copy(to, (void *)from, from, size); }
int cuMemcpyHtoD_v2(Address to, const void *from, size_t size) { return copy((void *)to, from, to, size); }
int cuGetErrorString(int code, const char **text) {
    *text = code == ILLEGAL ? "an illegal memory access was encountered" : "fake error";
    return FINE;
}
int cuMemAlloc_v2(Address *address, size_t size) {
    Handle handle = {{0}};
    snprintf(handle.name, 60, "/fake_cuda_%d_%d", getpid(), count++);
    return map(&handle, 1, size, address);
}
int cuMemGetInfo_v2(size_t *room, size_t *all_of_it) { *room = *all_of_it = 1 << 30; return FINE; }
int cuMemFree_v2(Address address) { return forget(address); }
int cuIpcGetMemHandle(Handle *handle, Address address) {
    Memory *one = find(address);
    if (one) *handle = one->handle;
    return one ? FINE : INVALID;
}
