/* SPDX-License-Identifier: Apache-2.0 */
/* A host with an OpenMP runtime of its own, which has set its thread count and calls from inside a parallel region. */
#include <criterion/criterion.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "small_run.h"

enum { HOST_THREADS = 3 };

static nbl_client open_client(void)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(nbl_client_open(&client, LIBRARY_DIR "/libnibble.so.1", &err), NBL_OK, "open: %s", err.message);
    cr_assert_eq(nbl_client_device(&client, "sim", &err), NBL_OK, "device: %s", err.message);
    return client;
}

static void expect_host_unchanged(void)
{
    int team = 0;
    cr_assert_eq(omp_get_max_threads(), HOST_THREADS, "the host's thread count is %d", omp_get_max_threads());
    cr_assert_eq(omp_get_dynamic(), 0, "the host's teams have become dynamic");
#pragma omp parallel
#pragma omp single
    team = omp_get_num_threads();
    cr_assert_eq(team, HOST_THREADS, "the host's team has %d threads", team);
}

Test(openmp, same_bits_inside_the_hosts_region)
{
    small_result outside, inside;
    nbl_status status = NBL_E_STATE;
    nbl_error err = NBL_INIT(nbl_error);
    omp_set_dynamic(0);
    omp_set_num_threads(HOST_THREADS);
    nbl_client client = open_client();
    expect_host_unchanged();
    cr_assert_eq(small_run(&client, &outside, &err), NBL_OK, "outside: %s", err.message);
    expect_host_unchanged();
#pragma omp parallel
#pragma omp single
    status = small_run(&client, &inside, &err);
    cr_assert_eq(status, NBL_OK, "inside: %s", err.message);
    cr_assert_eq(memcmp(&outside, &inside, sizeof inside), 0, "inside the host's region the bits differ");
    expect_host_unchanged();
    cr_assert_eq(nbl_client_close(&client, &err), NBL_OK, "close: %s", err.message);
}

Test(openmp, same_bits_for_any_thread_count_of_the_host)
{
    small_result first, other;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_client client = open_client();
    cr_assert_eq(small_run(&client, &first, &err), NBL_OK, "first: %s", err.message);
    for (int threads = 1; threads <= 4; threads++) {
        omp_set_num_threads(threads);
        cr_assert_eq(small_run(&client, &other, &err), NBL_OK, "%d threads: %s", threads, err.message);
        cr_assert_eq(memcmp(&first, &other, sizeof other), 0, "%d threads give other bits", threads);
    }
    cr_assert_eq(nbl_client_close(&client, &err), NBL_OK, "close: %s", err.message);
}
