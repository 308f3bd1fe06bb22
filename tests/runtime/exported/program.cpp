// A program that launches the exported kernel `add_row`, on whatever libcuda it is linked with.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "add_row.h"

extern "C" {
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize();
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemcpyHtoD_v2(uint64_t, const void *, size_t);
int cuMemcpyDtoH_v2(void *, uint64_t, size_t);
}

static void check(int code, const char *what) {
    if (code) { std::printf("%s: %d\n", what, code); std::exit(1); }
}

int main() {
    const int64_t rows = 16, columns = 64;
    void *context;
    int device;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");

    std::vector<float> host(rows * columns);
    for (size_t i = 0; i < host.size(); i++) host[i] = float(i % 97);
    const int64_t shape[] = {rows, columns}, strides[] = {columns, 1}, turned[] = {1, rows};
    tilejit_array x = {nullptr, TILEJIT_FLOAT32, 2, shape, strides}, y = {nullptr, TILEJIT_FLOAT32, 2, shape, nullptr};
    std::printf("without a context: %d, %s\n", add_row_launch(2, 1, 1, nullptr, &x, &y, nullptr, 1, 0.5f, 8), add_row_error());
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    uint64_t at;
    check(cuMemAlloc_v2(&at, host.size() * sizeof(float)), "cuMemAlloc");
    x.data = reinterpret_cast<void *>(at);
    check(cuMemcpyHtoD_v2(at, host.data(), host.size() * sizeof(float)), "cuMemcpyHtoD");
    check(cuMemAlloc_v2(&at, host.size() * sizeof(float)), "cuMemAlloc");
    y.data = reinterpret_cast<void *>(at);

    int code = add_row_load();
    std::printf("loaded: %d %s\n", code, add_row_error());
    code = add_row_launch(2, 1, 1, nullptr, &x, &y, nullptr, 3, 0.5f, 8);
    std::printf("launched: %d %s\n", code, add_row_error());
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    check(cuMemcpyDtoH_v2(host.data(), at, host.size() * sizeof(float)), "cuMemcpyDtoH");
    std::printf("result: %g %g %g\n", host[0], host[1], host[host.size() - 1]);

    std::printf("with a bias: %d\n", add_row_launch(2, 1, 1, nullptr, &x, &y, &x, 3, 0.5f, 8));
    std::printf("empty: %d\n", add_row_launch(0, 1, 1, nullptr, &x, &y, nullptr, 3, 0.5f, 8));
    x.strides = turned;
    std::printf("columns first: %d, %s\n", add_row_launch(2, 1, 1, nullptr, &x, &y, nullptr, 3, 0.5f, 8), add_row_error());
    x.strides = strides;
    x.dtype = TILEJIT_FLOAT16;
    std::printf("float16: %d, %s\n", add_row_launch(2, 1, 1, nullptr, &x, &y, nullptr, 3, 0.5f, 8), add_row_error());
    x.dtype = TILEJIT_FLOAT32;
    std::printf("BLOCK: %d, %s\n", add_row_launch(2, 1, 1, nullptr, &x, &y, nullptr, 3, 0.5f, 7), add_row_error());
    std::printf("grid: %d, %s\n", add_row_launch(2, 65536, 1, nullptr, &x, &y, nullptr, 3, 0.5f, 8), add_row_error());
    return 0;
}
