/* SPDX-License-Identifier: Apache-2.0 */
/* nibble_dlpack.h: what is taken, what is refused and with which words, who calls the deleter and how often. */
#include <criterion/criterion.h>
#include <string.h>

#include "nibble/nibble_dlpack.h"

/* The layout that DLPack 1.x fixes for 64-bit machines. */
_Static_assert(sizeof(nbl_dlpack_tensor) == 48 && sizeof(nbl_dlpack_managed) == 80, "sizes");
_Static_assert(offsetof(nbl_dlpack_tensor, device_type) == 8 && offsetof(nbl_dlpack_tensor, ndim) == 16 &&
                   offsetof(nbl_dlpack_tensor, dtype_code) == 20 && offsetof(nbl_dlpack_tensor, dtype_bits) == 21 &&
                   offsetof(nbl_dlpack_tensor, dtype_lanes) == 22 && offsetof(nbl_dlpack_tensor, shape) == 24 &&
                   offsetof(nbl_dlpack_tensor, strides) == 32 && offsetof(nbl_dlpack_tensor, byte_offset) == 40,
               "DLTensor");
_Static_assert(offsetof(nbl_dlpack_managed, manager_ctx) == 8 && offsetof(nbl_dlpack_managed, deleter) == 16 &&
                   offsetof(nbl_dlpack_managed, flags) == 24 && offsetof(nbl_dlpack_managed, tensor) == 32,
               "DLManagedTensorVersioned");

static float values[64];
static int64_t shape[6], strides[6];
static int deleted;

static void count_deletion(nbl_dlpack_managed *self)
{
    (void)self;
    deleted++;
}

/* [2, 3, 4] f32 on the CPU, packed, without strides. */
static nbl_dlpack_managed good(void)
{
    memcpy(shape, (int64_t[]){2, 3, 4}, 3 * sizeof *shape);
    memcpy(strides, (int64_t[]){12, 4, 1}, 3 * sizeof *strides);
    return (nbl_dlpack_managed){.major = 1,
                                .minor = 3,
                                .deleter = count_deletion,
                                .tensor = {.data = values,
                                           .device_type = NBL_DLPACK_CPU,
                                           .ndim = 3,
                                           .dtype_code = NBL_DLPACK_FLOAT,
                                           .dtype_bits = 32,
                                           .dtype_lanes = 1,
                                           .shape = shape}};
}

static const nbl_stream host = {NBL_STREAM_HOST, 0, NULL};
static const nbl_stream cuda = {NBL_STREAM_CUDA, 1, NBL_STREAM_CUDA_LEGACY};

static nbl_tensor expect_import(nbl_dlpack_managed *managed, uint32_t access, const nbl_stream *stream)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_tensor tensor;
    cr_assert_eq(nbl_dlpack_import(managed, access, stream, &tensor, &err), NBL_OK, "import: %s", err.message);
    cr_assert_eq(deleted, 0, "import called the deleter");
    return tensor;
}

static void expect_refused(nbl_dlpack_managed *managed, uint32_t access, const nbl_stream *stream, nbl_status status,
                           const char *message)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_tensor tensor, before;
    memset(&tensor, 0x5a, sizeof tensor);
    before = tensor;
    cr_assert_eq(nbl_dlpack_import(managed, access, stream, &tensor, &err), status, "status is %d: %s", err.status,
                 err.message);
    cr_assert_str_eq(err.message, message, "message is %s", err.message);
    cr_assert_eq(err.status, status, "err.status is %d", err.status);
    cr_assert_eq(memcmp(&tensor, &before, sizeof tensor), 0, "a refused import wrote its output");
    cr_assert_eq(nbl_dlpack_import(managed, access, stream, &tensor, NULL), status, "without an error struct");
}

Test(dlpack, packed)
{
    nbl_dlpack_managed m = good();
    const nbl_tensor t = expect_import(&m, NBL_DLPACK_INPUT, &host);
    cr_assert(t.data == values && t.dtype == NBL_F32 && t.rank == 3, "data, dtype or rank");
    cr_assert(t.shape[0] == 2 && t.shape[1] == 3 && t.shape[2] == 4, "shape");
    cr_assert(t.stride_bytes[0] == 48 && t.stride_bytes[1] == 16 && t.stride_bytes[2] == 4, "strides");
    nbl_dlpack_release(&m);
    cr_assert_eq(deleted, 1, "release called the deleter %d times", deleted);
    nbl_dlpack_release(NULL);
}

Test(dlpack, strided_with_offset)
{
    nbl_dlpack_managed m = good();
    memcpy(strides, (int64_t[]){1, 2, -6}, 3 * sizeof *strides);
    m.tensor.strides = strides;
    m.tensor.byte_offset = 96;
    const nbl_tensor t = expect_import(&m, NBL_DLPACK_INPUT, &host);
    cr_assert_eq(t.data, &values[24], "the offset is not in data");
    cr_assert(t.stride_bytes[0] == 4 && t.stride_bytes[1] == 8 && t.stride_bytes[2] == -24, "strides");
}

Test(dlpack, half_types)
{
    nbl_dlpack_managed m = good();
    m.tensor.dtype_bits = 16;
    cr_assert_eq(expect_import(&m, NBL_DLPACK_INPUT, &host).dtype, NBL_F16, "f16");
    m.tensor.dtype_code = NBL_DLPACK_BFLOAT;
    const nbl_tensor t = expect_import(&m, NBL_DLPACK_INPUT, &host);
    cr_assert(t.dtype == NBL_BF16 && t.stride_bytes[0] == 24, "bf16");
}

Test(dlpack, another_major_calls_the_deleter_once)
{
    nbl_dlpack_managed m = good();
    m.major = 2;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_tensor t;
    cr_assert_eq(nbl_dlpack_import(&m, NBL_DLPACK_INPUT, &host, &t, &err), NBL_E_ABI, "status is %d", err.status);
    cr_assert_str_eq(err.message, "nibble: dlpack: version 2.x; 1.x is needed", "message is %s", err.message);
    cr_assert_eq(deleted, 1, "the deleter was called %d times", deleted);
}

Test(dlpack, types_that_are_refused)
{
    static const struct {
        uint8_t code, bits;
        const char *message;
    } cases[] = {{2, 64, "nibble: dlpack: type code 2 of this width; f32, f16 or bf16 are needed"},
                 {2, 8, "nibble: dlpack: type code 2 of this width; f32, f16 or bf16 are needed"},
                 {0, 32, "nibble: dlpack: type code 0 of this width; f32, f16 or bf16 are needed"},
                 {4, 32, "nibble: dlpack: type code 4 of this width; f32, f16 or bf16 are needed"},
                 {10, 8, "nibble: dlpack: type code 10 of this width; f32, f16 or bf16 are needed"},
                 {17, 4,
                  "nibble: dlpack: elements have 4 bits; tensors of f32, f16 or bf16 are needed, pages are no "
                  "tensors"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nbl_dlpack_managed m = good();
        m.tensor.dtype_code = cases[i].code;
        m.tensor.dtype_bits = cases[i].bits;
        expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_UNSUPPORTED, cases[i].message);
    }
    nbl_dlpack_managed m = good();
    m.tensor.dtype_lanes = 4;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_UNSUPPORTED,
                   "nibble: dlpack: elements have 4 lanes; 1 is needed");
}

Test(dlpack, shapes_that_are_refused)
{
    nbl_dlpack_managed m = good();
    m.tensor.ndim = 0;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_INVALID, "nibble: dlpack: 0 dimensions; 1 to 5 are allowed");
    m.tensor.ndim = 6;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_INVALID, "nibble: dlpack: 6 dimensions; 1 to 5 are allowed");
    m = good();
    m.tensor.shape = NULL;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_INVALID, "nibble: dlpack: shape is NULL");
    m = good();
    shape[1] = -1;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_INVALID, "nibble: dlpack: dimension 1 is out of range");
    shape[1] = INT64_MAX / 8;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_INVALID, "nibble: dlpack: dimension 1 is out of range");
    m = good();
    strides[0] = INT64_MIN;
    m.tensor.strides = strides;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_INVALID, "nibble: dlpack: dimension 0 is out of range");
    expect_refused(NULL, NBL_DLPACK_INPUT, &host, NBL_E_INVALID, "nibble: dlpack: the tensor is NULL");
}

Test(dlpack, misaligned)
{
    nbl_dlpack_managed m = good();
    m.tensor.byte_offset = 2;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_ALIGN, "nibble: dlpack: data is not aligned to 4 bytes");
}

/* A stride of 0 repeats an element: fine to read, as long as not every stride is 0, which nbl_tensor has for packed. */
Test(dlpack, broadcast)
{
    nbl_dlpack_managed m = good();
    memcpy(strides, (int64_t[]){0, 4, 1}, 3 * sizeof *strides);
    m.tensor.strides = strides;
    cr_assert_eq(expect_import(&m, NBL_DLPACK_INPUT, &host).stride_bytes[0], 0, "stride of the broadcast");
    expect_refused(&m, NBL_DLPACK_OUTPUT, &host, NBL_E_OVERLAP,
                   "nibble: dlpack: dimension 0 of an output is broadcast");
    memset(strides, 0, sizeof strides);
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_UNSUPPORTED,
                   "nibble: dlpack: every stride is 0; give one dimension that is not broadcast");
    shape[0] = shape[1] = shape[2] = 1;
    const nbl_tensor t = expect_import(&m, NBL_DLPACK_OUTPUT, &host);
    cr_assert(t.stride_bytes[0] == 4 && t.stride_bytes[2] == 4, "one element has no strides");
}

Test(dlpack, empty)
{
    nbl_dlpack_managed m = good();
    shape[0] = 0;
    m.tensor.data = NULL;
    const nbl_tensor t = expect_import(&m, NBL_DLPACK_INPUT, &host);
    cr_assert(!t.data && t.shape[0] == 0 && t.shape[1] == 3, "an empty tensor");
}

Test(dlpack, read_only)
{
    nbl_dlpack_managed m = good();
    m.flags = NBL_DLPACK_READ_ONLY;
    (void)expect_import(&m, NBL_DLPACK_INPUT, &host);
    expect_refused(&m, NBL_DLPACK_OUTPUT, &host, NBL_E_INVALID,
                   "nibble: dlpack: the tensor is read-only and cannot be an output");
}

Test(dlpack, places)
{
    nbl_dlpack_managed m = good();
    expect_refused(&m, NBL_DLPACK_INPUT, &cuda, NBL_E_INVALID,
                   "nibble: dlpack: device type 1 is not memory that this backend can use");
    m.tensor.device_type = NBL_DLPACK_CUDA;
    expect_refused(&m, NBL_DLPACK_INPUT, &host, NBL_E_INVALID,
                   "nibble: dlpack: device type 2 is not memory that this backend can use");
    expect_refused(&m, NBL_DLPACK_INPUT, &cuda, NBL_E_INVALID,
                   "nibble: dlpack: the tensor lies on CUDA device 0, the stream on another");
    m.tensor.device_id = 1;
    (void)expect_import(&m, NBL_DLPACK_INPUT, &cuda);
    static const int32_t both[] = {NBL_DLPACK_CUDA_HOST, NBL_DLPACK_CUDA_MANAGED};
    for (size_t i = 0; i < 2; i++) {
        m.tensor.device_type = both[i];
        (void)expect_import(&m, NBL_DLPACK_INPUT, &cuda);
        (void)expect_import(&m, NBL_DLPACK_INPUT, &host);
    }
}

static void release(void *owner)
{
    ++*(int *)owner;
}

Test(dlpack, export_and_import_again)
{
    static const uint32_t types[] = {NBL_F32, NBL_F16, NBL_BF16};
    for (size_t i = 0; i < 3; i++) {
        nbl_dlpack_managed *managed = NULL;
        nbl_error err = NBL_INIT(nbl_error);
        int released = 0;
        const nbl_tensor t = {.data = values, .dtype = types[i], .rank = 2, .shape = {3, 5}, .stride_bytes = {64, 8}};
        cr_assert_eq(nbl_dlpack_export(&t, NBL_DLPACK_CPU, 0, NBL_DLPACK_READ_ONLY, &released, release, &managed, &err),
                     NBL_OK, "export: %s", err.message);
        cr_assert_eq(managed->flags, NBL_DLPACK_READ_ONLY, "the flag is lost");
        const nbl_tensor back = expect_import(managed, NBL_DLPACK_INPUT, &host);
        cr_assert_eq(memcmp(&t, &back, sizeof t), 0, "the tensor has changed");
        nbl_dlpack_release(managed);
        cr_assert_eq(released, 1, "release was called %d times", released);
    }
}

Test(dlpack, export_refused)
{
    nbl_dlpack_managed *managed = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_tensor t = {.data = values, .dtype = NBL_F32, .rank = 2, .shape = {3, 5}, .stride_bytes = {64, 6}};
    cr_assert_eq(nbl_dlpack_export(&t, NBL_DLPACK_CPU, 0, 0, NULL, NULL, &managed, &err), NBL_E_INVALID, "stride");
    cr_assert_str_eq(err.message, "nibble: dlpack: stride 1 is no whole number of elements", "message is %s",
                     err.message);
    t.dtype = NBL_DTYPE_NONE;
    cr_assert_eq(nbl_dlpack_export(&t, NBL_DLPACK_CPU, 0, 0, NULL, NULL, &managed, &err), NBL_E_INVALID, "dtype");
    cr_assert_null(managed, "a refused export wrote its output");
}
