/* The operators that graphs get for onnxruntime on a CPU in place of chains of its own: `Swoosh` (see fusing.py).

   softplus(x + bias) - slope (x + bias) of float32, of any shape; `bias`, if there is one, is as long as the last axis.
   onnxruntime takes 1.5 ns for a logarithm, and passes seven times over a tensor that no longer is in the caches; this
   passes once. onnxruntime's C interface is a table of functions whose order never changes; those used here are named
   by their places in it (onnxruntime_c_api.h, version 18), so that no header is needed to build this. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 18 /* of the interface: onnxruntime 1.18 */
#define FAIL 1     /* ORT_FAIL */
#define FLOAT 1    /* ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT */
#define OPTIONAL 1 /* INPUT_OUTPUT_OPTIONAL */
#define BLOCK 16384 /* numbers that a thread takes at once */
#define AXES 8

typedef void *Status; /* NULL: no error */

enum {
    CREATE_STATUS = 0,
    CREATE_DOMAIN = 26,
    ADD_TO_DOMAIN = 27,
    ADD_DOMAIN = 28,
    TENSOR_DATA = 51,
    NUM_AXES = 61,
    AXES_OF = 62,
    ELEMENT_COUNT = 64,
    SHAPE = 65,
    FLOAT_ATTRIBUTE = 85,
    INPUT = 90,
    OUTPUT = 91,
    RELEASE_SHAPE = 99,
    PARALLEL_FOR = 274,
};

#define CALL(place, ...) ((Status(*)(__VA_ARGS__))api[place])
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        Status status = (call);                                                                                        \
        if (status)                                                                                                    \
            return status;                                                                                             \
    } while (0)

typedef struct {
    void *const *(*get_api)(uint32_t);
} ApiBase;

typedef struct Op {
    uint32_t version;
    void *unused_create;
    const char *(*name)(const struct Op *);
    const char *(*provider)(const struct Op *);
    int (*input_type)(const struct Op *, size_t);
    size_t (*num_inputs)(const struct Op *);
    int (*output_type)(const struct Op *, size_t);
    size_t (*num_outputs)(const struct Op *);
    void *unused_compute;
    void (*destroy)(void *);
    int (*input_kind)(const struct Op *, size_t);
    int (*output_kind)(const struct Op *, size_t);
    int (*input_memory)(const struct Op *, size_t);
    int (*unused_variadic[4])(const struct Op *);
    Status (*create)(const struct Op *, void *const *, const void *, void **);
    Status (*compute)(void *, void *);
    void *unused_shape;
    int (*first_version)(const struct Op *);
    int (*last_version)(const struct Op *);
    size_t (*in_place)(int **, int **);
    void (*release_in_place)(int *, int *);
    size_t (*aliases)(int **, int **);
    void (*release_aliases)(int *, int *);
} Op;

typedef struct {
    void *const *api;
    float slope;
} Kernel;

typedef struct {
    const float *x, *bias;
    float *y;
    size_t count, width, block; /* numbers; of them in the bias, or 1; and at once, whole rows */
    float slope;
} Work;

/* softplus(x) - slope x. softplus(x) is max(x, 0) + log(1 + exp(-|x|)); the logarithm of 1 + u is 2 atanh(u / (2 + u)),
   whose series is exact in float32 for u of 0 to 1. */
static inline __attribute__((always_inline)) float swoosh(float x, float slope) {
    float t = -fabsf(x);
    t = t < -87.0f ? -87.0f : t;
    float shifted = t * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: what is behind the point is rounded away */
    float n = shifted - 12582912.0f;
    float r = t - n * 0.693145752f - n * 1.42860677e-6f; /* log(2) in two parts */
    float e = 1.0f / 5040;
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    int32_t bits, exponent;
    memcpy(&bits, &shifted, sizeof bits);
    exponent = (int32_t)((uint32_t)bits << 23) + (127 << 23); /* 2^n: the low bits of `shifted` are n */
    float scale;
    memcpy(&scale, &exponent, sizeof scale);
    float u = e * scale;
    float s = u / (2.0f + u), q = s * s;
    float a = 1.0f / 13;
    a = a * q + 1.0f / 11;
    a = a * q + 1.0f / 9;
    a = a * q + 1.0f / 7;
    a = a * q + 1.0f / 5;
    a = a * q + 1.0f / 3;
    a = a * q + 1.0f;
    float positive = x > 0.0f ? x : 0.0f;
    return positive + 2.0f * s * a - slope * x;
}

#if defined(__clang__)
#define IN_PLACE _Pragma("clang loop vectorize(assume_safety)") /* y may be x, but begins nowhere in it else */
#else
#define IN_PLACE _Pragma("GCC ivdep")
#endif

typedef void Rows(const float *x, const float *bias, float *y, size_t count, size_t width, float slope);

#define ROWS(called, target)                                                                                           \
    target static void called(const float *x, const float *bias, float *y, size_t count, size_t width, float slope) {  \
        if (!bias) {                                                                                                   \
            IN_PLACE                                                                                                   \
            for (size_t i = 0; i < count; i++)                                                                         \
                y[i] = swoosh(x[i], slope);                                                                            \
            return;                                                                                                    \
        }                                                                                                              \
        for (; count; count -= width, x += width, y += width) {                                                        \
            IN_PLACE                                                                                                   \
            for (size_t i = 0; i < width; i++)                                                                         \
                y[i] = swoosh(x[i] + bias[i], slope);                                                                  \
        }                                                                                                              \
    }

ROWS(rows_anywhere, )
#ifdef __x86_64__
ROWS(rows_avx2, __attribute__((target("avx2,fma"))))
ROWS(rows_avx512, __attribute__((target("avx512f,avx2,fma"))))
#endif

/* The form for what the CPU has. */
static Rows *chosen_rows(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f"))
        return rows_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return rows_avx2;
#endif
    return rows_anywhere;
}

static Rows *compute_rows = rows_anywhere;

static void compute_block(void *given, size_t index) {
    const Work *work = given;
    size_t start = index * work->block, left = work->count - start;
    compute_rows(work->x + start, work->bias, work->y + start, left < work->block ? left : work->block, work->width,
                 work->slope);
}

static Status compute(void *given, void *context) {
    const Kernel *kernel = given;
    void *const *api = kernel->api;
    const void *x, *bias;
    void *y, *shape;
    int64_t axes[AXES];
    size_t num_axes, width = 1;
    Work work = {.slope = kernel->slope};

    TRY(CALL(INPUT, const void *, size_t, const void **)(context, 0, &x));
    TRY(CALL(INPUT, const void *, size_t, const void **)(context, 1, &bias));
    TRY(CALL(SHAPE, const void *, void **)(x, &shape));
    Status status = CALL(NUM_AXES, const void *, size_t *)(shape, &num_axes);
    if (!status && num_axes > AXES)
        status = CALL(CREATE_STATUS, int, const char *)(FAIL, "Swoosh takes up to 8 axes");
    if (!status)
        status = CALL(AXES_OF, const void *, int64_t *, size_t)(shape, axes, num_axes);
    if (!status)
        status = CALL(ELEMENT_COUNT, const void *, size_t *)(shape, &work.count);
    ((void (*)(void *))api[RELEASE_SHAPE])(shape);
    TRY(status);
    if (bias) {
        TRY(CALL(SHAPE, const void *, void **)(bias, &shape));
        status = CALL(ELEMENT_COUNT, const void *, size_t *)(shape, &width);
        ((void (*)(void *))api[RELEASE_SHAPE])(shape);
        TRY(status);
        if (!num_axes || !width || axes[num_axes - 1] != (int64_t)width)
            return CALL(CREATE_STATUS, int, const char *)(FAIL, "Swoosh: the bias is not as long as the last axis");
        TRY(CALL(TENSOR_DATA, const void *, void **)(bias, (void **)&work.bias));
    }
    TRY(CALL(OUTPUT, void *, size_t, const int64_t *, size_t, void **)(context, 0, axes, num_axes, &y));
    TRY(CALL(TENSOR_DATA, const void *, void **)(x, (void **)&work.x));
    TRY(CALL(TENSOR_DATA, const void *, void **)(y, (void **)&work.y));
    work.width = width;
    work.block = (BLOCK + width - 1) / width * width;
    size_t blocks = (work.count + work.block - 1) / work.block;
    if (blocks > 1)
        return CALL(PARALLEL_FOR, const void *, void (*)(void *, size_t), size_t, size_t, void *)(
            context, compute_block, blocks, 0, &work);
    if (blocks)
        compute_block(&work, 0);
    return NULL;
}

static Status create(const Op *op, void *const *api, const void *info, void **made) {
    (void)op;
    Kernel *kernel = malloc(sizeof *kernel);
    if (!kernel)
        return CALL(CREATE_STATUS, int, const char *)(FAIL, "no memory");
    kernel->api = api;
    Status status = CALL(FLOAT_ATTRIBUTE, const void *, const char *, float *)(info, "slope", &kernel->slope);
    if (status)
        free(kernel);
    else
        *made = kernel;
    return status;
}

static const char *name(const Op *op) { return (void)op, "Swoosh"; }
static const char *on_cpu(const Op *op) { return (void)op, "CPUExecutionProvider"; }
static int type(const Op *op, size_t index) { return (void)op, (void)index, FLOAT; }
static size_t one(const Op *op) { return (void)op, 1; }
static size_t two(const Op *op) { return (void)op, 2; }
static int kind_of_input(const Op *op, size_t index) { return (void)op, index ? OPTIONAL : 0; }
static int zero(const Op *op, size_t index) { return (void)op, (void)index, 0; }
static int first_version(const Op *op) { return (void)op, 1; }
static int last_version(const Op *op) { return (void)op, 1; }
static size_t first_in_first(int **inputs, int **outputs) {
    static int place = 0;
    *inputs = *outputs = &place;
    return 1;
}
static void keep(int *inputs, int *outputs) { (void)inputs, (void)outputs; }

static const Op SWOOSH = {
    .version = VERSION,
    .name = name,
    .provider = on_cpu,
    .input_type = type,
    .num_inputs = two,
    .output_type = type,
    .num_outputs = one,
    .destroy = free,
    .input_kind = kind_of_input,
    .output_kind = zero,
    .input_memory = zero,
    .create = create,
    .compute = compute,
    .first_version = first_version,
    .last_version = last_version,
    .in_place = first_in_first,
    .release_in_place = keep,
};

/* What onnxruntime calls when a session's options name this library; the domain lives as long as the process. */
__attribute__((visibility("default"))) Status RegisterCustomOps(void *options, const ApiBase *base) {
    static void *domain;
    void *const *api = base->get_api(VERSION);
    compute_rows = chosen_rows();
    if (!domain) {
        void *made;
        TRY(CALL(CREATE_DOMAIN, const char *, void **)("tritone", &made));
        TRY(CALL(ADD_TO_DOMAIN, void *, const Op *)(made, &SWOOSH));
        domain = made;
    }
    return CALL(ADD_DOMAIN, void *, void *)(options, domain);
}
