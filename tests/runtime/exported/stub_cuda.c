/* A libcuda that records its calls: each on a line of standard output. Memory is the host's. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *current;
static int encoded;

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int n) { *device = n; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (char *)0x77 + device; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { *address = (uint64_t)aligned_alloc(256, (bytes + 255) / 256 * 256); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const char *capability = getenv("CAPABILITY");
    int n = capability ? atoi(capability) : 90;
    (void)device;
    *value = attribute == 16 ? 7 : attribute == 75 ? n / 10 : n % 10; /* 7 multiprocessors */
    return 0;
}

int cuModuleLoadData(void **module, const void *image) {
    printf("load %d\n", memcmp(image, "\177ELF", 4) == 0);
    *module = (void *)0x100;
    return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    printf("function %s\n", name);
    *function = module;
    return 0;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) { (void)attribute; (void)function; *value = 0; return 0; }

int cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)function;
    printf("attribute %d %d\n", attribute, value);
    return 0;
}

int cuGetErrorName(int code, const char **name) { *name = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : NULL; return code != 1; }

int cuTensorMapEncodeTiled(void *into, int dtype, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,
                           const uint32_t *box, const uint32_t *steps, int a, int b, int c, int d) {
    printf("map %d %u", dtype, rank);
    (void)address;
    for (uint32_t i = 0; i < rank; i++) printf(" %lu", (unsigned long)dims[i]);
    for (uint32_t i = 0; i + 1 < rank; i++) printf(" %lu", (unsigned long)strides[i]);
    for (uint32_t i = 0; i < rank; i++) printf(" %u", box[i]);
    for (uint32_t i = 0; i < rank; i++) printf(" %u", steps[i]);
    printf(" %d %d %d %d%s\n", a, b, c, d, (uintptr_t)into % 64 ? " misaligned" : "");
    memset(into, ++encoded, 128);
    return getenv("REFUSE_MAPS") != NULL;
}

typedef struct { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned count; } config_t;

/* The bytes of the parameters, whose sizes are in SIZES. */
int cuLaunchKernelEx(const config_t *config, void *function, void **params, void **extra) {
    const char *sizes = getenv("SIZES");
    (void)function; (void)extra;
    printf("launch %u %u %u, %u %u %u, %u, %lu, %u:", config->grid[0], config->grid[1], config->grid[2], config->block[0],
           config->block[1], config->block[2], config->shared, (unsigned long)(uintptr_t)config->stream, config->count);
    for (int n = 0; sizes && *sizes; n++) {
        char *end;
        long size = strtol(sizes, &end, 10);
        printf(" ");
        for (long i = 0; i < size; i++) printf("%02x", ((unsigned char *)params[n])[i]);
        sizes = *end ? end + 1 : end;
    }
    printf("\n");
    return 0;
}
