/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file graph.c
 * @brief A CUDA graph of append and attend, captured once at 100 tokens and replayed while lengths, page tables and the
 * batch's occupancy change: every byte equals the same calls made eagerly, and the simulator.
 *
 * Nothing of a call but addresses and bounds is in the graph. Needs a GPU; exits with 77 and the reason without one.
 */
#include "problem.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define CAPTURED_LENGTH 100u

/* Lengths of the first sequence in turn: around tiles (128), chunks (1024), far away and back. */
static const uint32_t lengths[] = {100,  101,  127,  128,  129,  1023, 1024, 1025,
                                   1026, 2048, 2049, 3000, 4096, 4097, 5000, 102};

static void expect_cuda(world *w, cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        world_fail(w, "%s: %s", what, cudaGetErrorString(error));
    }
}

static cudaStream_t stream_of(const world *w)
{
    return (cudaStream_t)w->sides[CUDA].stream.handle;
}

/* check inside a capture must neither wait nor end it. */
static cudaGraphExec_t capture(problem *p)
{
    world *w = p->w;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    expect_cuda(w, cudaStreamBeginCapture(stream_of(w), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    problem_step(p, CUDA);
    world_expect(w, &w->sides[CUDA], w->api->check(w->sides[CUDA].device, w->sides[CUDA].stream, &err), &err,
                 "check in a capture");
    expect_cuda(w, cudaStreamEndCapture(stream_of(w), &graph), "cudaStreamEndCapture");
    if (graph != NULL) {
        expect_cuda(w, cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
        expect_cuda(w, cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
    return exec;
}

/* Both outputs and the last tokens' bytes: sim against cuda. */
static void compare(problem *p, const char *what)
{
    char name[64];
    const struct {
        const char *name;
        const array *a;
    } outputs[] = {
        {"o", p->o},         {"lse", p->lse},      {"o, shorter", p->shorter_o}, {"lse, shorter", p->shorter_lse},
        {"codes", p->codes}, {"scales", p->scales}};
    for (uint32_t i = 0; i < COUNT(outputs); ++i) {
        snprintf(name, sizeof name, "%s, %s", outputs[i].name, what);
        world_compare(p->w, outputs[i].a, name);
    }
}

/* Lengths of one replay; in some of them sequences have left the batch. */
static void set_lengths(problem *p, uint32_t round)
{
    p->kv_len[0] = lengths[round];
    for (uint32_t b = 1; b < BATCH; ++b) {
        p->kv_len[b] = round == 0 ? CAPTURED_LENGTH : (round + b) % 3u == 0 ? 0u : 1u + world_below(p->w, KV_MAX - 1u);
    }
}

/* Random bytes in outputs and pages, so that what is not written shows; then all tokens but the last. */
static void begin(problem *p)
{
    array *const written[] = {p->o, p->lse, p->shorter_o, p->shorter_lse, p->codes, p->scales};
    for (uint32_t i = 0; i < COUNT(written); ++i) {
        world_send(p->w, written[i]);
    }
    problem_fill(p);
}

static void replay(problem *p, cudaGraphExec_t exec)
{
    world *w = p->w;
    snprintf(p->text, sizeof p->text, "formats %u %u, page %u, D %u, %u rows, lengths %u %u %u %u", p->k_format,
             p->v_format, p->shape.page_tokens, p->shape.k_dim, p->q_len, p->kv_len[0], p->kv_len[1], p->kv_len[2],
             p->kv_len[3]);
    w->case_text = p->text;
    begin(p);
    problem_step(p, SIM);
    expect_cuda(w, cudaGraphLaunch(exec, stream_of(w)), "cudaGraphLaunch");
    compare(p, "replayed");
    begin(p);
    problem_step(p, SIM);
    problem_step(p, CUDA);
    compare(p, "eager");
}

static void run_format(world *w, const uint32_t formats[3], uint32_t page_tokens, uint32_t dim, uint32_t q_len)
{
    static problem p;
    problem_make(&p, w, formats, page_tokens, dim, q_len);
    set_lengths(&p, 0);
    problem_make_tables(&p);
    cudaGraphExec_t exec = capture(&p);
    for (uint32_t round = 0; exec != NULL && round < COUNT(lengths); ++round) {
        set_lengths(&p, round);
        problem_make_tables(&p);
        replay(&p, exec);
    }
    expect_cuda(w, exec != NULL ? cudaGraphExecDestroy(exec) : cudaErrorUnknown, "the graph");
    problem_free(&p);
}

int main(void)
{
    static const struct {
        uint32_t formats[3], page_tokens, dim, q_len;
    } runs[] = {{{NBL_INT4P, NBL_INT4P, NBL_Q8}, 64, 128, 1}, /* decode */
                {{NBL_MXFP4, NBL_MXFP4, NBL_Q8}, 16, 128, 1},  {{NBL_INT4P, NBL_INT8, NBL_Q8}, 256, 64, 1},
                {{NBL_MXFP4, NBL_INT8, NBL_Q4}, 32, 96, 1},    {{NBL_INT8, NBL_INT8, NBL_Q8}, 8, 256, 1},
                {{NBL_INT4P, NBL_INT8, NBL_Q8}, 64, 128, 3}, /* prefill: few rows, split into chunks */
                {{NBL_MXFP4, NBL_MXFP4, NBL_Q8}, 16, 128, 40}, {{NBL_INT4P, NBL_INT4P, NBL_Q4}, 32, 64, 70},
                {{NBL_INT4P, NBL_INT8, NBL_Q8}, 64, 128, 2000}}; /* several items for each multiprocessor */
    static world w;
    cudaStream_t stream = NULL;
    if (world_open(&w, "sim", "cuda") != 0) {
        printf("graph: skipped: %s\n", w.text);
        return EXIT_SKIPPED;
    }
    expect_cuda(&w, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    w.sides[CUDA].stream.handle = stream;
    for (uint32_t i = 0; i < COUNT(runs); ++i) {
        run_format(&w, runs[i].formats, runs[i].page_tokens, runs[i].dim, runs[i].q_len);
    }
    expect_cuda(&w, cudaStreamDestroy(stream), "cudaStreamDestroy");
    world_close(&w);
    printf("graph: %u replays, %u failures%s%s\n", COUNT(runs) * COUNT(lengths), w.failures, w.failures > 0 ? ": " : "",
           w.failures > 0 ? w.text : "");
    return w.failures > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
