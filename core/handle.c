/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"
#include "lock.h"

/* A dead handle waits until this many others have died, so that a stale pointer keeps meeting NBL_HANDLE_DEAD. */
enum { QUARANTINE_HANDLES = 64 };

static nbl_handle *oldest;
static nbl_handle *newest;
static uint32_t quarantined;

/* The number of this process, in a page that the kernel wipes in a child, however it was made; NULL: there is none.
 * Asking the kernel in every call costs more than the rest of the check. */
static _Atomic(_Atomic int32_t *) id_page;

static void id_page_make(void)
{
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return;
    /* An emulator that takes advice which does not exist would take this one too, and not follow it. */
    if (madvise(page, bytes, -1) != 0 && madvise(page, bytes, MADV_WIPEONFORK) == 0)
        atomic_store(&id_page, (_Atomic int32_t *)page);
    else
        (void)munmap(page, bytes);
}

int32_t nbl_process_id(void)
{
    _Atomic int32_t *page = atomic_load_explicit(&id_page, memory_order_acquire);
    int32_t id = page != NULL ? atomic_load_explicit(page, memory_order_relaxed) : 0;
    if (id == 0) {
        id = (int32_t)getpid();
        if (page != NULL)
            atomic_store_explicit(page, id, memory_order_relaxed);
    }
    return id;
}

static const char *kind_name(uint32_t kind)
{
    return kind == NBL_HANDLE_RUNTIME ? "runtime" : kind == NBL_HANDLE_DEVICE ? "device" : "cache";
}

void *nbl_handle_create(uint32_t kind, size_t bytes)
{
    nbl_handle *handle = calloc(1, bytes);
    if (!handle)
        return NULL;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, id_page_make);
    handle->pid = nbl_process_id();
    handle->bytes = (uint32_t)bytes;
    atomic_store(&handle->kind, kind);
    return handle;
}

nbl_status nbl_handle_check(const void *handle, uint32_t kind, nbl_error *err)
{
    if (!handle)
        return nbl_fail(err, NBL_E_INVALID, NBL_ORIGIN_HOST, 0, "%s is NULL", kind_name(kind));
    const nbl_handle *head = handle;
    const uint32_t found = atomic_load(&head->kind);
    if (found != kind)
        return nbl_fail(err, NBL_E_STATE, NBL_ORIGIN_HOST, 0, "%s handle is %s", kind_name(kind),
                        found == NBL_HANDLE_DEAD ? "destroyed" : "of another kind");
    const int32_t pid = nbl_process_id();
    if (head->pid != pid)
        return nbl_fail(err, NBL_E_FORKED, NBL_ORIGIN_HOST, 0,
                        "%s created in process %d, used in its fork %d; create the runtime after fork", kind_name(kind),
                        head->pid, pid);
    return NBL_OK;
}

nbl_status nbl_handle_retire(void *handle, uint32_t kind, nbl_error *err)
{
    const nbl_status status = nbl_handle_check(handle, kind, err);
    if (status != NBL_OK)
        return status;
    nbl_handle *head = handle;
    const uint32_t users = atomic_load(&head->users);
    if (users != 0)
        return nbl_fail(err, NBL_E_STATE, NBL_ORIGIN_HOST, 0, "%s still has open %s (%u)", kind_name(kind),
                        kind == NBL_HANDLE_RUNTIME ? "devices" : "caches", users);
    uint32_t alive = kind;
    if (!atomic_compare_exchange_strong(&head->kind, &alive, NBL_HANDLE_DEAD))
        return nbl_fail(err, NBL_E_STATE, NBL_ORIGIN_HOST, 0, "%s handle is destroyed", kind_name(kind));
    return NBL_OK;
}

void nbl_handle_recycle(void *handle)
{
    nbl_handle *head = handle;
    memset(head + 1, 0, head->bytes - sizeof *head);
    head->next = NULL;
    nbl_handle *released = NULL;
    nbl_lock(NBL_LOCK_HANDLES);
    if (newest)
        newest->next = head;
    else
        oldest = head;
    newest = head;
    if (++quarantined > QUARANTINE_HANDLES) {
        released = oldest;
        oldest = oldest->next;
        quarantined--;
    }
    nbl_unlock(NBL_LOCK_HANDLES);
    free(released);
}

void nbl_handle_add_user(void *parent)
{
    atomic_fetch_add(&((nbl_handle *)parent)->users, 1);
}

void nbl_handle_drop_user(void *parent)
{
    atomic_fetch_sub(&((nbl_handle *)parent)->users, 1);
}

nbl_status nbl_device_check(const nbl_device *device, nbl_error *err)
{
    return nbl_handle_check(device, NBL_HANDLE_DEVICE, err);
}
