/* A libcuda for one sm_90a without a GPU: memory is the host's, kernels do nothing. It prints some calls, each on a line
   of standard output. The variable LACKS names a function that it does not have. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned count; } config_t;
typedef struct { uint32_t id, pad; uint32_t value[16]; } attribute_t;

static void *current;
static int captured;

static int say(const char *what) { printf("%s\n", what); fflush(stdout); return 0; }

int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int n) { *device = n; return 0; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "stub %d", device); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 1 + device, 16); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (char *)0x7700000000000077 + device; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxPushCurrent_v2(void *context) { current = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = current; current = NULL; return 0; }
int cuCtxSynchronize(void) { return say("synchronize"); }
int cuMemFree_v2(uint64_t address) { free((void *)address); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *s) { (void)s; return cuMemcpyHtoD_v2(to, from, bytes); }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *s) { (void)s; return cuMemcpyDtoH_v2(to, from, bytes); }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *s) { (void)s; memcpy((void *)to, (void *)from, bytes); return 0; }
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *s) { (void)s; memset((void *)to, value, bytes); return 0; }
int cuPointerGetAttribute(void *value, int attribute, uint64_t address) { (void)address; *(int *)value = attribute == 9; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (char *)0x5000000000000000 + flags; return 0; }
int cuStreamDestroy_v2(void *stream) { printf("destroy stream %lx\n", (unsigned long)stream); fflush(stdout); return 0; }
int cuStreamSynchronize(void *stream) { printf("synchronize %lx\n", (unsigned long)stream); fflush(stdout); return 0; }
int cuStreamWaitEvent(void *s, void *event, unsigned flags) { (void)s; (void)event; (void)flags; return say("wait for event"); }
int cuStreamBeginCapture_v2(void *s, int mode) { (void)s; captured = mode == 2; return 0; }
int cuStreamEndCapture(void *s, void **graph) { (void)s; captured = 0; *graph = (void *)0x6000000000000000; return 0; }
int cuStreamGetCaptureInfo_v3(void *s, int *status, uint64_t *id, void **graph, const void **nodes, const void **edges, size_t *count) {
    (void)s; *status = captured; if (id) *id = 41; if (graph) *graph = (void *)0x6000000000000000;
    if (nodes) *nodes = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return 0;
}
int cuGraphGetNodes(void *graph, void **nodes, size_t *count) { (void)graph; (void)nodes; *count = 1; return 0; }
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) { (void)graph; (void)flags; *made = (void *)0x6100; return 0; }
int cuGraphLaunch(void *graph, void *s) { (void)graph; (void)s; return say("launch graph"); }
int cuGraphDestroy(void *graph) { (void)graph; return say("destroy graph"); }
int cuGraphExecDestroy(void *graph) { (void)graph; return say("destroy executable graph"); }
int cuUserObjectCreate(void **made, void *given, void (*end)(void *), unsigned count, unsigned flags) { (void)count; (void)flags; *made = (void *)0x62; end(given); return 0; }
int cuGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags) { (void)graph; (void)count; (void)flags; return object != (void *)0x62; }
int cuEventCreate(void **event, unsigned flags) { *event = (char *)0x7000000000000000 + flags; return 0; }
int cuEventDestroy_v2(void *event) { (void)event; return 0; }
int cuEventRecord(void *event, void *s) { (void)event; (void)s; return 0; }
int cuEventSynchronize(void *event) { (void)event; return 0; }
int cuEventElapsedTime(float *ms, void *a, void *b) { (void)a; (void)b; *ms = 1.5f; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)module; (void)name; *function = (void *)0x4000000000000001; return 0; }
int cuModuleGetGlobal_v2(uint64_t *at, size_t *bytes, void *module, const char *name) {
    (void)module;
    (void)name;
    if (at) *at = 0x2000000000000008;
    if (bytes) *bytes = 24;
    return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) { (void)function; *value = attribute == 4 ? 24 : 0; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; printf("attribute %d %d\n", attribute, value); fflush(stdout); return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *f, int threads, size_t shared) { (void)f; *count = threads + (int)shared; return 0; }
int cuModuleUnload(void *module) { (void)module; return 0; }

int cuPointerGetAttributes(unsigned count, int *attributes, void **values, uint64_t address) {
    for (unsigned n = 0; n < count; n++) {
        if (attributes[n] == 9) *(int *)values[n] = 1;
        else if (attributes[n] == 2) *(unsigned *)values[n] = 2;  /* device memory */
        else if (attributes[n] == 8) *(unsigned *)values[n] = 0;
        else *(uint64_t *)values[n] = address;
    }
    return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    if (bytes >> 40) return 2;
    *address = (uint64_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    return 0;
}

int cuModuleLoadData(void **module, const void *image) {
    printf("load %s\n", memcmp(image, "\177ELF", 4) ? "text" : "cubin");
    fflush(stdout);
    *module = (void *)0x3000000000000001;
    return memcmp(image, "bad", 3) ? 0 : 218;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : attribute == 97 ? 232448 : 1;
    return 0;
}

int cuOccupancyMaxActiveClusters(int *count, void *function, const config_t *config) {
    const attribute_t *a = config->attributes;
    (void)function;
    printf("clusters %u %u %u, %u, %u: %u %u %u %u %u\n", config->grid[0], config->grid[1], config->grid[2], config->block[0],
           config->shared, config->count, a->id, a->value[0], a->value[1], a->value[2]);
    fflush(stdout);
    *count = 3;
    return 0;
}

int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_INVALID_VALUE"; return code != 1; }
int cuTensorMapEncodeTiled(void *into) { memset(into, 1, 128); return 0; }
int cuTensorMapEncodeIm2col(void *into) { memset(into, 2, 128); return 0; }

int cuLaunchKernelEx(const config_t *config, void *function, void **params, void **extra) {
    (void)params; (void)extra;
    printf("launch %u %u %u, %u, %lx, %lx\n", config->grid[0], config->grid[1], config->grid[2], config->block[0],
           (unsigned long)config->stream, (unsigned long)function);
    fflush(stdout);
    return 0;
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    const char *lacking = getenv("LACKS");
    char name[128];
    (void)flags;
    *found = NULL;
    if (!lacking || strcmp(lacking, symbol)) {
        for (const char **end = (const char *[]){"_v3", "_v2", "WithFlags", "", NULL}; *end && !*found; end++) {
            snprintf(name, sizeof name, "%s%s", symbol, *end);
            *found = dlsym(RTLD_DEFAULT, name);
            if (!*found) {
                Dl_info here;
                dladdr((void *)cuInit, &here);
                void *self = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
                *found = self ? dlsym(self, name) : NULL;
            }
        }
    }
    (void)version;
    if (status) *status = *found ? 0 : 1;
    return *found ? 0 : 500;
}
