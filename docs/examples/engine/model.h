/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file model.h
 * @brief A decoder of the Gemma 3 kind: RMSNorm, RoPE, grouped-query attention, gated MLP. Its attention is nibble's.
 */
#ifndef MODEL_H
#define MODEL_H

#include <nibble/nibble_client.h>

#include "gguf.h"

typedef struct model model;

/** Reads the hyperparameters and finds the weights; NULL, and one line on stderr, if the file is another kind of model.
 *  The file must outlive the model. */
model *model_create(const gguf *file);
void model_free(model *m);

/** A cache for this model on the client's device: all layers, one sequence of tokens_max tokens, of which a call brings
 *  up to batch_tokens. */
nbl_status model_cache(const model *m, const nbl_client *client, const char *recipe, uint64_t tokens_max,
                       uint32_t batch_tokens, nbl_cache **out_cache, nbl_error *err);

/** Runs count tokens that stand at positions position.., through all layers; their keys and values go into the cache.
 *
 * @param out_logits  [vocabulary] of the last token, or NULL
 */
nbl_status model_run(const model *m, const nbl_client *client, nbl_cache *cache, uint64_t sequence,
                     const uint32_t *tokens, uint32_t count, uint32_t position, float *out_logits, nbl_error *err);

#endif
