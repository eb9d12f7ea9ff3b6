/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#define EXPECT(call, status) cr_assert_eq(call, status, "%s: %s", #call, err.message)

/* No slot follows a handle that is NULL, of another kind or closed. */
Test(badinput_handles, every_slot_looks_at_its_handle)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    void *memory = NULL;
    const nbl_stream host = {.kind = NBL_STREAM_HOST};
    world_open(&w);
    const nbl_api_v1 *api = w.c.api;
    nbl_device *const handles[] = {NULL, (nbl_device *)(void *)w.c.runtime};
    const nbl_status expected[] = {NBL_E_INVALID, NBL_E_STATE};
    for (uint32_t i = 0; i < 2; ++i) {
        nbl_device *d = handles[i];
        EXPECT(api->supports(d, &w.desc, &err), expected[i]);
        EXPECT(api->workspace_size(d, &w.desc, &(uint64_t){0}, &err), expected[i]);
        EXPECT(api->memory_alloc(d, 64, &memory, &err), expected[i]);
        EXPECT(api->memory_free(d, NULL, &err), expected[i]);
        EXPECT(api->memory_copy(d, world_memory(0), world_memory(1), 4, NBL_COPY_TO_DEVICE, host, &err), expected[i]);
        EXPECT(api->check(d, host, &err), expected[i]);
        EXPECT(api->append(d, &w.append, &err), expected[i]);
        EXPECT(api->attend(d, &w.attend, &err), expected[i]);
        EXPECT(api->gather(d, &w.gather, &err), expected[i]);
        EXPECT(api->copy_pages(d, &w.copy, &err), expected[i]);
        EXPECT(api->transcode(d, &w.transcode, &err), expected[i]);
        EXPECT(api->merge(d, &w.merge, &err), expected[i]);
    }
    counting_close(&w.c);
    EXPECT(api->attend(w.c.device, &w.attend, &err), NBL_E_STATE);
    cr_assert_eq(w.c.state->operations, 0, "the backend was called");
}

Test(badinput_handles, memory)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    void *memory = &w;
    const nbl_stream host = {.kind = NBL_STREAM_HOST}, unknown = {.kind = 5};
    uint8_t *a = world_memory(BLOCK_K);
    world_open(&w);
    const nbl_api_v1 *api = w.c.api;
    EXPECT(api->memory_alloc(w.c.device, 0, &memory, &err), NBL_E_INVALID);
    EXPECT(api->memory_alloc(w.c.device, 64, NULL, &err), NBL_E_INVALID);
    EXPECT(api->memory_alloc(w.c.device, UINT64_MAX, &memory, &err), NBL_E_INVALID);
    EXPECT(api->memory_copy(w.c.device, a, a + 64, 8, 3, host, &err), NBL_E_INVALID);
    EXPECT(api->memory_copy(w.c.device, a, a + 64, 8, NBL_COPY_TO_HOST, unknown, &err), NBL_E_INVALID);
    EXPECT(api->memory_copy(w.c.device, NULL, a, 8, NBL_COPY_TO_HOST, host, &err), NBL_E_INVALID);
    EXPECT(api->memory_copy(w.c.device, a, NULL, 8, NBL_COPY_TO_HOST, host, &err), NBL_E_INVALID);
    EXPECT(api->memory_copy(w.c.device, a, a + 7, 8, NBL_COPY_ON_DEVICE, host, &err), NBL_E_OVERLAP);
    EXPECT(api->memory_copy(w.c.device, NULL, NULL, 0, NBL_COPY_TO_HOST, host, &err), NBL_OK);
    EXPECT(api->check(w.c.device, unknown, &err), NBL_E_INVALID);
    w.c.state->memory_offset = 128;
    EXPECT(api->memory_alloc(w.c.device, 64, &memory, &err), NBL_E_BACKEND);
    w.c.state->memory_offset = 0;
    cr_assert_eq(w.c.state->live_blocks, 0, "refused memory was kept");
    cr_assert_eq(memory, &w, "output written");
    EXPECT(api->memory_alloc(w.c.device, 64, &memory, &err), NBL_OK);
    EXPECT(api->memory_free(w.c.device, memory, &err), NBL_OK);
    EXPECT(api->memory_free(w.c.device, NULL, &err), NBL_OK);
    cr_assert_eq(w.c.state->live_blocks, 0, "memory left");
    counting_close(&w.c);
}
