/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble_asserts.h
 * @brief Sizes of all public structs in version 1.0, and the proof that a compiler lays them out as published.
 *
 * Including this header is optional; it generates no code. The numbers are those of LP64 on x86-64 and aarch64. A
 * struct grows only by fields after its 1.0 size, so the offsets below never change; NBL_V1_BYTES(type) is the least
 * struct_size a receiver accepts.
 */
#ifndef NIBBLE_ASSERTS_H
#define NIBBLE_ASSERTS_H

#include "nibble.h"
#include "nibble_backend.h"

/** Size of a public struct in version 1.0, in bytes. */
#define NBL_V1_BYTES(type) NBL_V1_BYTES_##type

#define NBL_V1_BYTES_nbl_error 504u
#define NBL_V1_BYTES_nbl_ext 24u
#define NBL_V1_BYTES_nbl_tensor 96u
#define NBL_V1_BYTES_nbl_kv_shape 56u
#define NBL_V1_BYTES_nbl_region 64u
#define NBL_V1_BYTES_nbl_pool 40u
#define NBL_V1_BYTES_nbl_page_layout 88u
#define NBL_V1_BYTES_nbl_stream 16u
#define NBL_V1_BYTES_nbl_quant_stats 40u
#define NBL_V1_BYTES_nbl_centers 40u
#define NBL_V1_BYTES_nbl_append_args 328u
#define NBL_V1_BYTES_nbl_append_coded_args 464u
#define NBL_V1_BYTES_nbl_attend_args 680u
#define NBL_V1_BYTES_nbl_gather_args 296u
#define NBL_V1_BYTES_nbl_copy_pages_args 72u
#define NBL_V1_BYTES_nbl_transcode_args 88u
#define NBL_V1_BYTES_nbl_merge_args 816u
#define NBL_V1_BYTES_nbl_op_desc 80u
#define NBL_V1_BYTES_nbl_caps 160u
#define NBL_V1_BYTES_nbl_device_options 32u
#define NBL_V1_BYTES_nbl_load_attempt 88u
#define NBL_V1_BYTES_nbl_load_options 56u
#define NBL_V1_BYTES_nbl_recipe 80u
#define NBL_V1_BYTES_nbl_cache_config 104u
#define NBL_V1_BYTES_nbl_cache_stats 192u
#define NBL_V1_BYTES_nbl_cache_append_args 248u
#define NBL_V1_BYTES_nbl_cache_attend_args 400u
#define NBL_V1_BYTES_nbl_prefix 64u
#define NBL_V1_BYTES_nbl_cache_event 64u
#define NBL_V1_BYTES_nbl_policy_rule 32u
#define NBL_V1_BYTES_nbl_policy 568u
#define NBL_V1_BYTES_nbl_api_request 16u
#define NBL_V1_BYTES_nbl_api_v1 288u
#define NBL_V1_BYTES_nbl_host 40u
#define NBL_V1_BYTES_nbl_backend_request 24u
#define NBL_V1_BYTES_nbl_backend_v1 144u
#define NBL_V1_BYTES_nbl_note_payload 40u
#define NBL_V1_BYTES_nbl_note 60u

#ifdef __cplusplus
#define NBL_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define NBL_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

/** A struct is as long as in version 1.0. A minor that appends a field to a struct says so here. */
#define NBL_ASSERT_SIZE(type) NBL_STATIC_ASSERT(sizeof(type) == NBL_V1_BYTES(type), "size of " #type)
/** A field lies where version 1.0 put it. */
#define NBL_ASSERT_FIELD(type, field, offset) \
    NBL_STATIC_ASSERT(offsetof(type, field) == (offset), "offset of " #type "." #field)

NBL_ASSERT_SIZE(nbl_error);
NBL_ASSERT_FIELD(nbl_error, struct_size, 0);
NBL_ASSERT_FIELD(nbl_error, status, 4);
NBL_ASSERT_FIELD(nbl_error, origin, 8);
NBL_ASSERT_FIELD(nbl_error, native_code, 12);
NBL_ASSERT_FIELD(nbl_error, truncated, 16);
NBL_ASSERT_FIELD(nbl_error, reserved, 20);
NBL_ASSERT_FIELD(nbl_error, message, 24);

NBL_ASSERT_SIZE(nbl_ext);
NBL_ASSERT_FIELD(nbl_ext, struct_size, 0);
NBL_ASSERT_FIELD(nbl_ext, type, 4);
NBL_ASSERT_FIELD(nbl_ext, flags, 8);
NBL_ASSERT_FIELD(nbl_ext, reserved, 12);
NBL_ASSERT_FIELD(nbl_ext, next, 16);

NBL_ASSERT_SIZE(nbl_tensor);
NBL_ASSERT_FIELD(nbl_tensor, data, 0);
NBL_ASSERT_FIELD(nbl_tensor, dtype, 8);
NBL_ASSERT_FIELD(nbl_tensor, rank, 12);
NBL_ASSERT_FIELD(nbl_tensor, shape, 16);
NBL_ASSERT_FIELD(nbl_tensor, stride_bytes, 56);

NBL_ASSERT_SIZE(nbl_kv_shape);
NBL_ASSERT_FIELD(nbl_kv_shape, struct_size, 0);
NBL_ASSERT_FIELD(nbl_kv_shape, flags, 4);
NBL_ASSERT_FIELD(nbl_kv_shape, next, 8);
NBL_ASSERT_FIELD(nbl_kv_shape, layers, 16);
NBL_ASSERT_FIELD(nbl_kv_shape, kv_heads, 20);
NBL_ASSERT_FIELD(nbl_kv_shape, k_dim, 24);
NBL_ASSERT_FIELD(nbl_kv_shape, v_dim, 28);
NBL_ASSERT_FIELD(nbl_kv_shape, page_tokens, 32);
NBL_ASSERT_FIELD(nbl_kv_shape, k_hadamard, 36);
NBL_ASSERT_FIELD(nbl_kv_shape, v_hadamard, 40);
NBL_ASSERT_FIELD(nbl_kv_shape, k_scale_rule, 44);
NBL_ASSERT_FIELD(nbl_kv_shape, v_scale_rule, 48);
NBL_ASSERT_FIELD(nbl_kv_shape, centering, 52);

NBL_ASSERT_SIZE(nbl_region);
NBL_ASSERT_FIELD(nbl_region, k_format, 0);
NBL_ASSERT_FIELD(nbl_region, v_format, 4);
NBL_ASSERT_FIELD(nbl_region, first_page, 8);
NBL_ASSERT_FIELD(nbl_region, page_count, 12);
NBL_ASSERT_FIELD(nbl_region, codes, 16);
NBL_ASSERT_FIELD(nbl_region, scales, 24);
NBL_ASSERT_FIELD(nbl_region, code_page_stride, 32);
NBL_ASSERT_FIELD(nbl_region, code_layer_stride, 40);
NBL_ASSERT_FIELD(nbl_region, scale_page_stride, 48);
NBL_ASSERT_FIELD(nbl_region, scale_layer_stride, 56);

NBL_STATIC_ASSERT(sizeof(nbl_pool) == 56u, "size of nbl_pool, which has grown");
NBL_ASSERT_FIELD(nbl_pool, struct_size, 0);
NBL_ASSERT_FIELD(nbl_pool, flags, 4);
NBL_ASSERT_FIELD(nbl_pool, next, 8);
NBL_ASSERT_FIELD(nbl_pool, shape, 16);
NBL_ASSERT_FIELD(nbl_pool, regions, 24);
NBL_ASSERT_FIELD(nbl_pool, region_count, 32);
NBL_ASSERT_FIELD(nbl_pool, reserved, 36);
NBL_ASSERT_FIELD(nbl_pool, k_scale, 40);
NBL_ASSERT_FIELD(nbl_pool, v_scale, 48);

NBL_ASSERT_SIZE(nbl_page_layout);
NBL_ASSERT_FIELD(nbl_page_layout, struct_size, 0);
NBL_ASSERT_FIELD(nbl_page_layout, flags, 4);
NBL_ASSERT_FIELD(nbl_page_layout, next, 8);
NBL_ASSERT_FIELD(nbl_page_layout, code_page_bytes, 16);
NBL_ASSERT_FIELD(nbl_page_layout, scale_page_bytes, 24);
NBL_ASSERT_FIELD(nbl_page_layout, k_code_head_bytes, 32);
NBL_ASSERT_FIELD(nbl_page_layout, v_code_head_bytes, 40);
NBL_ASSERT_FIELD(nbl_page_layout, v_code_offset, 48);
NBL_ASSERT_FIELD(nbl_page_layout, k_scale_head_bytes, 56);
NBL_ASSERT_FIELD(nbl_page_layout, v_scale_head_bytes, 64);
NBL_ASSERT_FIELD(nbl_page_layout, v_scale_offset, 72);
NBL_ASSERT_FIELD(nbl_page_layout, alignment, 80);
NBL_ASSERT_FIELD(nbl_page_layout, reserved, 84);

NBL_ASSERT_SIZE(nbl_stream);
NBL_ASSERT_FIELD(nbl_stream, kind, 0);
NBL_ASSERT_FIELD(nbl_stream, device, 4);
NBL_ASSERT_FIELD(nbl_stream, handle, 8);

NBL_ASSERT_SIZE(nbl_quant_stats);
NBL_ASSERT_FIELD(nbl_quant_stats, vectors, 0);
NBL_ASSERT_FIELD(nbl_quant_stats, nan_inputs, 8);
NBL_ASSERT_FIELD(nbl_quant_stats, inf_inputs, 16);
NBL_ASSERT_FIELD(nbl_quant_stats, saturated, 24);
NBL_ASSERT_FIELD(nbl_quant_stats, flushed, 32);

NBL_ASSERT_SIZE(nbl_centers);
NBL_ASSERT_FIELD(nbl_centers, codes, 0);
NBL_ASSERT_FIELD(nbl_centers, exponents, 8);
NBL_ASSERT_FIELD(nbl_centers, shifts, 16);
NBL_ASSERT_FIELD(nbl_centers, rows, 24);
NBL_ASSERT_FIELD(nbl_centers, row_count, 32);
NBL_ASSERT_FIELD(nbl_centers, reserved, 36);

NBL_ASSERT_SIZE(nbl_append_args);
NBL_ASSERT_FIELD(nbl_append_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_append_args, flags, 4);
NBL_ASSERT_FIELD(nbl_append_args, next, 8);
NBL_ASSERT_FIELD(nbl_append_args, pool, 16);
NBL_ASSERT_FIELD(nbl_append_args, layer, 24);
NBL_ASSERT_FIELD(nbl_append_args, batch, 28);
NBL_ASSERT_FIELD(nbl_append_args, k, 32);
NBL_ASSERT_FIELD(nbl_append_args, v, 128);
NBL_ASSERT_FIELD(nbl_append_args, slots, 224);
NBL_ASSERT_FIELD(nbl_append_args, seq_indptr, 232);
NBL_ASSERT_FIELD(nbl_append_args, centers, 240);
NBL_ASSERT_FIELD(nbl_append_args, center_mode, 280);
NBL_ASSERT_FIELD(nbl_append_args, reserved, 284);
NBL_ASSERT_FIELD(nbl_append_args, stats, 288);
NBL_ASSERT_FIELD(nbl_append_args, workspace, 296);
NBL_ASSERT_FIELD(nbl_append_args, workspace_bytes, 304);
NBL_ASSERT_FIELD(nbl_append_args, stream, 312);

NBL_ASSERT_SIZE(nbl_append_coded_args);
NBL_ASSERT_FIELD(nbl_append_coded_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_append_coded_args, flags, 4);
NBL_ASSERT_FIELD(nbl_append_coded_args, next, 8);
NBL_ASSERT_FIELD(nbl_append_coded_args, pool, 16);
NBL_ASSERT_FIELD(nbl_append_coded_args, layer, 24);
NBL_ASSERT_FIELD(nbl_append_coded_args, k_format, 28);
NBL_ASSERT_FIELD(nbl_append_coded_args, v_format, 32);
NBL_ASSERT_FIELD(nbl_append_coded_args, scale_layout, 36);
NBL_ASSERT_FIELD(nbl_append_coded_args, k, 40);
NBL_ASSERT_FIELD(nbl_append_coded_args, v, 136);
NBL_ASSERT_FIELD(nbl_append_coded_args, k_scales, 232);
NBL_ASSERT_FIELD(nbl_append_coded_args, v_scales, 328);
NBL_ASSERT_FIELD(nbl_append_coded_args, slots, 424);
NBL_ASSERT_FIELD(nbl_append_coded_args, scale_token, 432);
NBL_ASSERT_FIELD(nbl_append_coded_args, stats, 440);
NBL_ASSERT_FIELD(nbl_append_coded_args, stream, 448);

NBL_STATIC_ASSERT(sizeof(nbl_attend_args) == 776u, "size of nbl_attend_args");
NBL_ASSERT_FIELD(nbl_attend_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_attend_args, flags, 4);
NBL_ASSERT_FIELD(nbl_attend_args, next, 8);
NBL_ASSERT_FIELD(nbl_attend_args, pool, 16);
NBL_ASSERT_FIELD(nbl_attend_args, layer, 24);
NBL_ASSERT_FIELD(nbl_attend_args, q_heads, 28);
NBL_ASSERT_FIELD(nbl_attend_args, q_format, 32);
NBL_ASSERT_FIELD(nbl_attend_args, batch, 36);
NBL_ASSERT_FIELD(nbl_attend_args, q, 40);
NBL_ASSERT_FIELD(nbl_attend_args, o, 136);
NBL_ASSERT_FIELD(nbl_attend_args, lse, 232);
NBL_ASSERT_FIELD(nbl_attend_args, state_head, 328);
NBL_ASSERT_FIELD(nbl_attend_args, state_o, 424);
NBL_ASSERT_FIELD(nbl_attend_args, q_indptr, 520);
NBL_ASSERT_FIELD(nbl_attend_args, kv_len, 528);
NBL_ASSERT_FIELD(nbl_attend_args, page_table, 536);
NBL_ASSERT_FIELD(nbl_attend_args, page_table_stride, 544);
NBL_ASSERT_FIELD(nbl_attend_args, q_len_max, 548);
NBL_ASSERT_FIELD(nbl_attend_args, kv_len_max, 552);
NBL_ASSERT_FIELD(nbl_attend_args, sm_scale, 556);
NBL_ASSERT_FIELD(nbl_attend_args, window_left, 560);
NBL_ASSERT_FIELD(nbl_attend_args, window_right, 564);
NBL_ASSERT_FIELD(nbl_attend_args, soft_cap, 568);
NBL_ASSERT_FIELD(nbl_attend_args, range_begin, 572);
NBL_ASSERT_FIELD(nbl_attend_args, range_end, 576);
NBL_ASSERT_FIELD(nbl_attend_args, tree_mask_stride, 580);
NBL_ASSERT_FIELD(nbl_attend_args, alibi_slopes, 584);
NBL_ASSERT_FIELD(nbl_attend_args, sinks, 592);
NBL_ASSERT_FIELD(nbl_attend_args, tree_mask, 600);
NBL_ASSERT_FIELD(nbl_attend_args, centers, 608);
NBL_ASSERT_FIELD(nbl_attend_args, workspace, 648);
NBL_ASSERT_FIELD(nbl_attend_args, workspace_bytes, 656);
NBL_ASSERT_FIELD(nbl_attend_args, stream, 664);
NBL_ASSERT_FIELD(nbl_attend_args, q_centers, 680);

NBL_ASSERT_SIZE(nbl_gather_args);
NBL_ASSERT_FIELD(nbl_gather_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_gather_args, flags, 4);
NBL_ASSERT_FIELD(nbl_gather_args, next, 8);
NBL_ASSERT_FIELD(nbl_gather_args, pool, 16);
NBL_ASSERT_FIELD(nbl_gather_args, layer, 24);
NBL_ASSERT_FIELD(nbl_gather_args, batch, 28);
NBL_ASSERT_FIELD(nbl_gather_args, slots, 32);
NBL_ASSERT_FIELD(nbl_gather_args, k, 40);
NBL_ASSERT_FIELD(nbl_gather_args, v, 136);
NBL_ASSERT_FIELD(nbl_gather_args, seq_indptr, 232);
NBL_ASSERT_FIELD(nbl_gather_args, centers, 240);
NBL_ASSERT_FIELD(nbl_gather_args, stream, 280);

NBL_ASSERT_SIZE(nbl_copy_pages_args);
NBL_ASSERT_FIELD(nbl_copy_pages_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_copy_pages_args, flags, 4);
NBL_ASSERT_FIELD(nbl_copy_pages_args, next, 8);
NBL_ASSERT_FIELD(nbl_copy_pages_args, src_pool, 16);
NBL_ASSERT_FIELD(nbl_copy_pages_args, dst_pool, 24);
NBL_ASSERT_FIELD(nbl_copy_pages_args, src_pages, 32);
NBL_ASSERT_FIELD(nbl_copy_pages_args, dst_pages, 40);
NBL_ASSERT_FIELD(nbl_copy_pages_args, count, 48);
NBL_ASSERT_FIELD(nbl_copy_pages_args, reserved, 52);
NBL_ASSERT_FIELD(nbl_copy_pages_args, stream, 56);

NBL_ASSERT_SIZE(nbl_transcode_args);
NBL_ASSERT_FIELD(nbl_transcode_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_transcode_args, flags, 4);
NBL_ASSERT_FIELD(nbl_transcode_args, next, 8);
NBL_ASSERT_FIELD(nbl_transcode_args, src_pool, 16);
NBL_ASSERT_FIELD(nbl_transcode_args, dst_pool, 24);
NBL_ASSERT_FIELD(nbl_transcode_args, src_pages, 32);
NBL_ASSERT_FIELD(nbl_transcode_args, dst_pages, 40);
NBL_ASSERT_FIELD(nbl_transcode_args, token_counts, 48);
NBL_ASSERT_FIELD(nbl_transcode_args, count, 56);
NBL_ASSERT_FIELD(nbl_transcode_args, reserved, 60);
NBL_ASSERT_FIELD(nbl_transcode_args, stats, 64);
NBL_ASSERT_FIELD(nbl_transcode_args, stream, 72);

NBL_ASSERT_SIZE(nbl_merge_args);
NBL_ASSERT_FIELD(nbl_merge_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_merge_args, flags, 4);
NBL_ASSERT_FIELD(nbl_merge_args, next, 8);
NBL_ASSERT_FIELD(nbl_merge_args, count, 16);
NBL_ASSERT_FIELD(nbl_merge_args, v_hadamard, 20);
NBL_ASSERT_FIELD(nbl_merge_args, in_state_head, 24);
NBL_ASSERT_FIELD(nbl_merge_args, in_state_o, 120);
NBL_ASSERT_FIELD(nbl_merge_args, in_o, 216);
NBL_ASSERT_FIELD(nbl_merge_args, in_lse, 312);
NBL_ASSERT_FIELD(nbl_merge_args, state_head, 408);
NBL_ASSERT_FIELD(nbl_merge_args, state_o, 504);
NBL_ASSERT_FIELD(nbl_merge_args, o, 600);
NBL_ASSERT_FIELD(nbl_merge_args, lse, 696);
NBL_ASSERT_FIELD(nbl_merge_args, sinks, 792);
NBL_ASSERT_FIELD(nbl_merge_args, stream, 800);

NBL_ASSERT_SIZE(nbl_op_desc);
NBL_ASSERT_FIELD(nbl_op_desc, struct_size, 0);
NBL_ASSERT_FIELD(nbl_op_desc, flags, 4);
NBL_ASSERT_FIELD(nbl_op_desc, next, 8);
NBL_ASSERT_FIELD(nbl_op_desc, shape, 16);
NBL_ASSERT_FIELD(nbl_op_desc, op, 24);
NBL_ASSERT_FIELD(nbl_op_desc, k_format, 28);
NBL_ASSERT_FIELD(nbl_op_desc, v_format, 32);
NBL_ASSERT_FIELD(nbl_op_desc, dst_k_format, 36);
NBL_ASSERT_FIELD(nbl_op_desc, dst_v_format, 40);
NBL_ASSERT_FIELD(nbl_op_desc, q_format, 44);
NBL_ASSERT_FIELD(nbl_op_desc, q_heads, 48);
NBL_ASSERT_FIELD(nbl_op_desc, in_dtype, 52);
NBL_ASSERT_FIELD(nbl_op_desc, out_dtype, 56);
NBL_ASSERT_FIELD(nbl_op_desc, features, 60);
NBL_ASSERT_FIELD(nbl_op_desc, batch_max, 64);
NBL_ASSERT_FIELD(nbl_op_desc, q_tokens_max, 68);
NBL_ASSERT_FIELD(nbl_op_desc, q_len_max, 72);
NBL_ASSERT_FIELD(nbl_op_desc, kv_len_max, 76);

NBL_ASSERT_SIZE(nbl_caps);
NBL_ASSERT_FIELD(nbl_caps, struct_size, 0);
NBL_ASSERT_FIELD(nbl_caps, flags, 4);
NBL_ASSERT_FIELD(nbl_caps, next, 8);
NBL_ASSERT_FIELD(nbl_caps, formats, 16);
NBL_ASSERT_FIELD(nbl_caps, k_dim_max, 20);
NBL_ASSERT_FIELD(nbl_caps, v_dim_max, 24);
NBL_ASSERT_FIELD(nbl_caps, page_tokens_max, 28);
NBL_ASSERT_FIELD(nbl_caps, kv_tokens_max, 32);
NBL_ASSERT_FIELD(nbl_caps, memory_bytes, 40);
NBL_ASSERT_FIELD(nbl_caps, stream_kind, 48);
NBL_ASSERT_FIELD(nbl_caps, threads, 52);
NBL_ASSERT_FIELD(nbl_caps, deterministic, 56);
NBL_ASSERT_FIELD(nbl_caps, graph_capture, 60);
NBL_ASSERT_FIELD(nbl_caps, device_name, 64);
NBL_ASSERT_FIELD(nbl_caps, isa, 128);

NBL_STATIC_ASSERT(sizeof(nbl_device_options) == 40u, "size of nbl_device_options, which has grown");
NBL_ASSERT_FIELD(nbl_device_options, struct_size, 0);
NBL_ASSERT_FIELD(nbl_device_options, flags, 4);
NBL_ASSERT_FIELD(nbl_device_options, next, 8);
NBL_ASSERT_FIELD(nbl_device_options, ordinal, 16);
NBL_ASSERT_FIELD(nbl_device_options, threads, 20);
NBL_ASSERT_FIELD(nbl_device_options, isa, 24);
NBL_ASSERT_FIELD(nbl_device_options, profile, 32);

NBL_ASSERT_SIZE(nbl_load_attempt);
NBL_ASSERT_FIELD(nbl_load_attempt, struct_size, 0);
NBL_ASSERT_FIELD(nbl_load_attempt, flags, 4);
NBL_ASSERT_FIELD(nbl_load_attempt, next, 8);
NBL_ASSERT_FIELD(nbl_load_attempt, name, 16);
NBL_ASSERT_FIELD(nbl_load_attempt, path, 24);
NBL_ASSERT_FIELD(nbl_load_attempt, message, 32);
NBL_ASSERT_FIELD(nbl_load_attempt, description, 40);
NBL_ASSERT_FIELD(nbl_load_attempt, status, 48);
NBL_ASSERT_FIELD(nbl_load_attempt, phase, 52);
NBL_ASSERT_FIELD(nbl_load_attempt, file_device, 56);
NBL_ASSERT_FIELD(nbl_load_attempt, file_inode, 64);
NBL_ASSERT_FIELD(nbl_load_attempt, abi_minor, 72);
NBL_ASSERT_FIELD(nbl_load_attempt, numerics_version, 76);
NBL_ASSERT_FIELD(nbl_load_attempt, layout_version, 80);
NBL_ASSERT_FIELD(nbl_load_attempt, reserved, 84);

NBL_ASSERT_SIZE(nbl_load_options);
NBL_ASSERT_FIELD(nbl_load_options, struct_size, 0);
NBL_ASSERT_FIELD(nbl_load_options, flags, 4);
NBL_ASSERT_FIELD(nbl_load_options, next, 8);
NBL_ASSERT_FIELD(nbl_load_options, backend, 16);
NBL_ASSERT_FIELD(nbl_load_options, backend_dir, 24);
NBL_ASSERT_FIELD(nbl_load_options, log, 32);
NBL_ASSERT_FIELD(nbl_load_options, log_user, 40);
NBL_ASSERT_FIELD(nbl_load_options, client_name, 48);

NBL_STATIC_ASSERT(sizeof(nbl_recipe) == 88u, "size of nbl_recipe, which has grown");
NBL_ASSERT_FIELD(nbl_recipe, struct_size, 0);
NBL_ASSERT_FIELD(nbl_recipe, flags, 4);
NBL_ASSERT_FIELD(nbl_recipe, next, 8);
NBL_ASSERT_FIELD(nbl_recipe, q_format, 16);
NBL_ASSERT_FIELD(nbl_recipe, k_format, 20);
NBL_ASSERT_FIELD(nbl_recipe, v_format, 24);
NBL_ASSERT_FIELD(nbl_recipe, k_hadamard, 28);
NBL_ASSERT_FIELD(nbl_recipe, v_hadamard, 32);
NBL_ASSERT_FIELD(nbl_recipe, centering, 36);
NBL_ASSERT_FIELD(nbl_recipe, sink_tokens, 40);
NBL_ASSERT_FIELD(nbl_recipe, reserved, 44);
NBL_ASSERT_FIELD(nbl_recipe, name, 48);
NBL_ASSERT_FIELD(nbl_recipe, scale_rule, 80);
NBL_ASSERT_FIELD(nbl_recipe, reserved_end, 84);

NBL_STATIC_ASSERT(sizeof(nbl_cache_config) == 184u, "size of nbl_cache_config");
NBL_ASSERT_FIELD(nbl_cache_config, struct_size, 0);
NBL_ASSERT_FIELD(nbl_cache_config, flags, 4);
NBL_ASSERT_FIELD(nbl_cache_config, next, 8);
NBL_ASSERT_FIELD(nbl_cache_config, shape, 16);
NBL_ASSERT_FIELD(nbl_cache_config, k_format, 72);
NBL_ASSERT_FIELD(nbl_cache_config, v_format, 76);
NBL_ASSERT_FIELD(nbl_cache_config, sink_tokens, 80);
NBL_ASSERT_FIELD(nbl_cache_config, sequences_max, 84);
NBL_ASSERT_FIELD(nbl_cache_config, tokens_max, 88);
NBL_ASSERT_FIELD(nbl_cache_config, sequence_tokens_max, 96);
NBL_ASSERT_FIELD(nbl_cache_config, workspace_mib, 100);
NBL_ASSERT_FIELD(nbl_cache_config, center_tokens, 104);
NBL_ASSERT_FIELD(nbl_cache_config, prefix_roots_max, 108);
NBL_ASSERT_FIELD(nbl_cache_config, hash_key, 112);
NBL_ASSERT_FIELD(nbl_cache_config, on_event, 128);
NBL_ASSERT_FIELD(nbl_cache_config, event_user, 136);
NBL_ASSERT_FIELD(nbl_cache_config, rules, 144);
NBL_ASSERT_FIELD(nbl_cache_config, rule_count, 152);
NBL_ASSERT_FIELD(nbl_cache_config, append_tokens_max, 156);
NBL_ASSERT_FIELD(nbl_cache_config, host_bytes, 160);
NBL_ASSERT_FIELD(nbl_cache_config, file_bytes, 168);
NBL_ASSERT_FIELD(nbl_cache_config, file_folder, 176);

NBL_STATIC_ASSERT(sizeof(nbl_cache_stats) == 360u, "size of nbl_cache_stats");
NBL_ASSERT_FIELD(nbl_cache_stats, struct_size, 0);
NBL_ASSERT_FIELD(nbl_cache_stats, flags, 4);
NBL_ASSERT_FIELD(nbl_cache_stats, next, 8);
NBL_ASSERT_FIELD(nbl_cache_stats, code_bytes, 16);
NBL_ASSERT_FIELD(nbl_cache_stats, scale_bytes, 24);
NBL_ASSERT_FIELD(nbl_cache_stats, center_bytes, 32);
NBL_ASSERT_FIELD(nbl_cache_stats, metadata_bytes, 40);
NBL_ASSERT_FIELD(nbl_cache_stats, workspace_bytes, 48);
NBL_ASSERT_FIELD(nbl_cache_stats, total_bytes, 56);
NBL_ASSERT_FIELD(nbl_cache_stats, used_bytes, 64);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_total, 72);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_used, 104);
NBL_ASSERT_FIELD(nbl_cache_stats, region_count, 136);
NBL_ASSERT_FIELD(nbl_cache_stats, sequences, 140);
NBL_ASSERT_FIELD(nbl_cache_stats, tokens, 144);
NBL_ASSERT_FIELD(nbl_cache_stats, quant, 152);
NBL_ASSERT_FIELD(nbl_cache_stats, forks, 192);
NBL_ASSERT_FIELD(nbl_cache_stats, page_copies, 200);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_cached, 208);
NBL_ASSERT_FIELD(nbl_cache_stats, prefix_queries, 240);
NBL_ASSERT_FIELD(nbl_cache_stats, prefix_tokens, 248);
NBL_ASSERT_FIELD(nbl_cache_stats, prefix_hit_tokens, 256);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_stored, 264);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_unstored, 272);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_evicted, 280);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_demoted, 288);
NBL_ASSERT_FIELD(nbl_cache_stats, host_bytes, 296);
NBL_ASSERT_FIELD(nbl_cache_stats, file_bytes, 304);
NBL_ASSERT_FIELD(nbl_cache_stats, host_pages_total, 312);
NBL_ASSERT_FIELD(nbl_cache_stats, host_pages_used, 316);
NBL_ASSERT_FIELD(nbl_cache_stats, file_pages_total, 320);
NBL_ASSERT_FIELD(nbl_cache_stats, file_pages_used, 324);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_offloaded, 328);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_spilled, 336);
NBL_ASSERT_FIELD(nbl_cache_stats, pages_restored, 344);
NBL_ASSERT_FIELD(nbl_cache_stats, tier_failures, 352);

NBL_ASSERT_SIZE(nbl_cache_append_args);
NBL_ASSERT_FIELD(nbl_cache_append_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_cache_append_args, flags, 4);
NBL_ASSERT_FIELD(nbl_cache_append_args, next, 8);
NBL_ASSERT_FIELD(nbl_cache_append_args, sequences, 16);
NBL_ASSERT_FIELD(nbl_cache_append_args, seq_indptr, 24);
NBL_ASSERT_FIELD(nbl_cache_append_args, batch, 32);
NBL_ASSERT_FIELD(nbl_cache_append_args, layer, 36);
NBL_ASSERT_FIELD(nbl_cache_append_args, k, 40);
NBL_ASSERT_FIELD(nbl_cache_append_args, v, 136);
NBL_ASSERT_FIELD(nbl_cache_append_args, stream, 232);

NBL_STATIC_ASSERT(sizeof(nbl_cache_attend_args) == 496u, "size of nbl_cache_attend_args");
NBL_ASSERT_FIELD(nbl_cache_attend_args, struct_size, 0);
NBL_ASSERT_FIELD(nbl_cache_attend_args, flags, 4);
NBL_ASSERT_FIELD(nbl_cache_attend_args, next, 8);
NBL_ASSERT_FIELD(nbl_cache_attend_args, sequences, 16);
NBL_ASSERT_FIELD(nbl_cache_attend_args, q_indptr, 24);
NBL_ASSERT_FIELD(nbl_cache_attend_args, batch, 32);
NBL_ASSERT_FIELD(nbl_cache_attend_args, layer, 36);
NBL_ASSERT_FIELD(nbl_cache_attend_args, q_heads, 40);
NBL_ASSERT_FIELD(nbl_cache_attend_args, q_format, 44);
NBL_ASSERT_FIELD(nbl_cache_attend_args, q, 48);
NBL_ASSERT_FIELD(nbl_cache_attend_args, o, 144);
NBL_ASSERT_FIELD(nbl_cache_attend_args, lse, 240);
NBL_ASSERT_FIELD(nbl_cache_attend_args, sm_scale, 336);
NBL_ASSERT_FIELD(nbl_cache_attend_args, soft_cap, 340);
NBL_ASSERT_FIELD(nbl_cache_attend_args, window_left, 344);
NBL_ASSERT_FIELD(nbl_cache_attend_args, window_right, 348);
NBL_ASSERT_FIELD(nbl_cache_attend_args, tree_mask_stride, 352);
NBL_ASSERT_FIELD(nbl_cache_attend_args, reserved, 356);
NBL_ASSERT_FIELD(nbl_cache_attend_args, alibi_slopes, 360);
NBL_ASSERT_FIELD(nbl_cache_attend_args, sinks, 368);
NBL_ASSERT_FIELD(nbl_cache_attend_args, tree_mask, 376);
NBL_ASSERT_FIELD(nbl_cache_attend_args, stream, 384);
NBL_ASSERT_FIELD(nbl_cache_attend_args, q_centers, 400);

NBL_ASSERT_SIZE(nbl_prefix);
NBL_ASSERT_FIELD(nbl_prefix, struct_size, 0);
NBL_ASSERT_FIELD(nbl_prefix, flags, 4);
NBL_ASSERT_FIELD(nbl_prefix, next, 8);
NBL_ASSERT_FIELD(nbl_prefix, tokens, 16);
NBL_ASSERT_FIELD(nbl_prefix, count, 24);
NBL_ASSERT_FIELD(nbl_prefix, first_tokens, 28);
NBL_ASSERT_FIELD(nbl_prefix, salt, 32);
NBL_ASSERT_FIELD(nbl_prefix, priority, 40);
NBL_ASSERT_FIELD(nbl_prefix, reserved, 44);
NBL_ASSERT_FIELD(nbl_prefix, stream, 48);

NBL_STATIC_ASSERT(sizeof(nbl_cache_event) == 72u, "size of nbl_cache_event");
NBL_ASSERT_FIELD(nbl_cache_event, struct_size, 0);
NBL_ASSERT_FIELD(nbl_cache_event, kind, 4);
NBL_ASSERT_FIELD(nbl_cache_event, key, 8);
NBL_ASSERT_FIELD(nbl_cache_event, parent_key, 24);
NBL_ASSERT_FIELD(nbl_cache_event, salt, 40);
NBL_ASSERT_FIELD(nbl_cache_event, tokens, 48);
NBL_ASSERT_FIELD(nbl_cache_event, page_tokens, 56);
NBL_ASSERT_FIELD(nbl_cache_event, place, 60);
NBL_ASSERT_FIELD(nbl_cache_event, tier, 64);
NBL_ASSERT_FIELD(nbl_cache_event, reserved, 68);

NBL_ASSERT_SIZE(nbl_policy_rule);
NBL_ASSERT_FIELD(nbl_policy_rule, layer_begin, 0);
NBL_ASSERT_FIELD(nbl_policy_rule, layer_end, 4);
NBL_ASSERT_FIELD(nbl_policy_rule, scope, 8);
NBL_ASSERT_FIELD(nbl_policy_rule, tokens, 12);
NBL_ASSERT_FIELD(nbl_policy_rule, k_format, 16);
NBL_ASSERT_FIELD(nbl_policy_rule, v_format, 20);
NBL_ASSERT_FIELD(nbl_policy_rule, k_hadamard, 24);
NBL_ASSERT_FIELD(nbl_policy_rule, v_hadamard, 28);

NBL_ASSERT_SIZE(nbl_policy);
NBL_ASSERT_FIELD(nbl_policy, struct_size, 0);
NBL_ASSERT_FIELD(nbl_policy, flags, 4);
NBL_ASSERT_FIELD(nbl_policy, next, 8);
NBL_ASSERT_FIELD(nbl_policy, q_format, 16);
NBL_ASSERT_FIELD(nbl_policy, k_format, 20);
NBL_ASSERT_FIELD(nbl_policy, v_format, 24);
NBL_ASSERT_FIELD(nbl_policy, k_hadamard, 28);
NBL_ASSERT_FIELD(nbl_policy, v_hadamard, 32);
NBL_ASSERT_FIELD(nbl_policy, centering, 36);
NBL_ASSERT_FIELD(nbl_policy, sink_tokens, 40);
NBL_ASSERT_FIELD(nbl_policy, rule_count, 44);
NBL_ASSERT_FIELD(nbl_policy, rules, 48);
NBL_ASSERT_FIELD(nbl_policy, scale_rule, 560);
NBL_ASSERT_FIELD(nbl_policy, reserved_end, 564);

NBL_ASSERT_SIZE(nbl_api_request);
NBL_ASSERT_FIELD(nbl_api_request, struct_size, 0);
NBL_ASSERT_FIELD(nbl_api_request, abi_major, 4);
NBL_ASSERT_FIELD(nbl_api_request, abi_minor_min, 8);
NBL_ASSERT_FIELD(nbl_api_request, reserved, 12);

NBL_STATIC_ASSERT(sizeof(nbl_api_v1) == 432u, "size of nbl_api_v1");
NBL_ASSERT_FIELD(nbl_api_v1, struct_size, 0);
NBL_ASSERT_FIELD(nbl_api_v1, abi_minor, 4);
NBL_ASSERT_FIELD(nbl_api_v1, load, 8);
NBL_ASSERT_FIELD(nbl_api_v1, runtime_destroy, 16);
NBL_ASSERT_FIELD(nbl_api_v1, report_count, 24);
NBL_ASSERT_FIELD(nbl_api_v1, report_get, 32);
NBL_ASSERT_FIELD(nbl_api_v1, report_free, 40);
NBL_ASSERT_FIELD(nbl_api_v1, status_name, 48);
NBL_ASSERT_FIELD(nbl_api_v1, status_text, 56);
NBL_ASSERT_FIELD(nbl_api_v1, build_info, 64);
NBL_ASSERT_FIELD(nbl_api_v1, open, 72);
NBL_ASSERT_FIELD(nbl_api_v1, close, 80);
NBL_ASSERT_FIELD(nbl_api_v1, caps, 88);
NBL_ASSERT_FIELD(nbl_api_v1, supports, 96);
NBL_ASSERT_FIELD(nbl_api_v1, workspace_size, 104);
NBL_ASSERT_FIELD(nbl_api_v1, kv_layout, 112);
NBL_ASSERT_FIELD(nbl_api_v1, memory_alloc, 120);
NBL_ASSERT_FIELD(nbl_api_v1, memory_free, 128);
NBL_ASSERT_FIELD(nbl_api_v1, memory_copy, 136);
NBL_ASSERT_FIELD(nbl_api_v1, check, 144);
NBL_ASSERT_FIELD(nbl_api_v1, append, 152);
NBL_ASSERT_FIELD(nbl_api_v1, attend, 160);
NBL_ASSERT_FIELD(nbl_api_v1, gather, 168);
NBL_ASSERT_FIELD(nbl_api_v1, copy_pages, 176);
NBL_ASSERT_FIELD(nbl_api_v1, transcode, 184);
NBL_ASSERT_FIELD(nbl_api_v1, merge, 192);
NBL_ASSERT_FIELD(nbl_api_v1, recipe_parse, 200);
NBL_ASSERT_FIELD(nbl_api_v1, cache_plan, 208);
NBL_ASSERT_FIELD(nbl_api_v1, cache_create, 216);
NBL_ASSERT_FIELD(nbl_api_v1, cache_destroy, 224);
NBL_ASSERT_FIELD(nbl_api_v1, cache_stats, 232);
NBL_ASSERT_FIELD(nbl_api_v1, seq_create, 240);
NBL_ASSERT_FIELD(nbl_api_v1, seq_free, 248);
NBL_ASSERT_FIELD(nbl_api_v1, seq_length, 256);
NBL_ASSERT_FIELD(nbl_api_v1, seq_truncate, 264);
NBL_ASSERT_FIELD(nbl_api_v1, cache_append, 272);
NBL_ASSERT_FIELD(nbl_api_v1, cache_attend, 280);
NBL_ASSERT_FIELD(nbl_api_v1, seq_fork, 288);
NBL_ASSERT_FIELD(nbl_api_v1, seq_truncate_batch, 296);
NBL_ASSERT_FIELD(nbl_api_v1, seq_drop_prefix, 304);
NBL_ASSERT_FIELD(nbl_api_v1, cache_verify, 312);
NBL_ASSERT_FIELD(nbl_api_v1, prefix_publish, 320);
NBL_ASSERT_FIELD(nbl_api_v1, prefix_match, 328);
NBL_ASSERT_FIELD(nbl_api_v1, seq_adopt, 336);
NBL_ASSERT_FIELD(nbl_api_v1, prefix_pin, 344);
NBL_ASSERT_FIELD(nbl_api_v1, prefix_unpin, 352);
NBL_ASSERT_FIELD(nbl_api_v1, prefix_clear, 360);
NBL_ASSERT_FIELD(nbl_api_v1, snapshot_size, 368);
NBL_ASSERT_FIELD(nbl_api_v1, snapshot_write, 376);
NBL_ASSERT_FIELD(nbl_api_v1, snapshot_save, 384);
NBL_ASSERT_FIELD(nbl_api_v1, snapshot_read, 392);
NBL_ASSERT_FIELD(nbl_api_v1, snapshot_load, 400);
NBL_ASSERT_FIELD(nbl_api_v1, policy_parse, 408);
NBL_ASSERT_FIELD(nbl_api_v1, cache_stats_text, 416);
NBL_ASSERT_FIELD(nbl_api_v1, append_coded, 424);

NBL_ASSERT_SIZE(nbl_host);
NBL_ASSERT_FIELD(nbl_host, struct_size, 0);
NBL_ASSERT_FIELD(nbl_host, reserved, 4);
NBL_ASSERT_FIELD(nbl_host, log, 8);
NBL_ASSERT_FIELD(nbl_host, alloc, 16);
NBL_ASSERT_FIELD(nbl_host, free, 24);
NBL_ASSERT_FIELD(nbl_host, fail, 32);

NBL_ASSERT_SIZE(nbl_backend_request);
NBL_ASSERT_FIELD(nbl_backend_request, struct_size, 0);
NBL_ASSERT_FIELD(nbl_backend_request, abi_major, 4);
NBL_ASSERT_FIELD(nbl_backend_request, abi_minor_min, 8);
NBL_ASSERT_FIELD(nbl_backend_request, abi_minor, 12);
NBL_ASSERT_FIELD(nbl_backend_request, numerics_version, 16);
NBL_ASSERT_FIELD(nbl_backend_request, layout_version, 20);

NBL_STATIC_ASSERT(sizeof(nbl_backend_v1) == 168u, "size of nbl_backend_v1");
NBL_ASSERT_FIELD(nbl_backend_v1, struct_size, 0);
NBL_ASSERT_FIELD(nbl_backend_v1, abi_minor, 4);
NBL_ASSERT_FIELD(nbl_backend_v1, name, 8);
NBL_ASSERT_FIELD(nbl_backend_v1, description, 16);
NBL_ASSERT_FIELD(nbl_backend_v1, device_open, 24);
NBL_ASSERT_FIELD(nbl_backend_v1, device_close, 32);
NBL_ASSERT_FIELD(nbl_backend_v1, caps, 40);
NBL_ASSERT_FIELD(nbl_backend_v1, supports, 48);
NBL_ASSERT_FIELD(nbl_backend_v1, workspace_size, 56);
NBL_ASSERT_FIELD(nbl_backend_v1, memory_alloc, 64);
NBL_ASSERT_FIELD(nbl_backend_v1, memory_free, 72);
NBL_ASSERT_FIELD(nbl_backend_v1, memory_copy, 80);
NBL_ASSERT_FIELD(nbl_backend_v1, check, 88);
NBL_ASSERT_FIELD(nbl_backend_v1, append, 96);
NBL_ASSERT_FIELD(nbl_backend_v1, attend, 104);
NBL_ASSERT_FIELD(nbl_backend_v1, gather, 112);
NBL_ASSERT_FIELD(nbl_backend_v1, copy_pages, 120);
NBL_ASSERT_FIELD(nbl_backend_v1, transcode, 128);
NBL_ASSERT_FIELD(nbl_backend_v1, merge, 136);
NBL_ASSERT_FIELD(nbl_backend_v1, host_alloc, 144);
NBL_ASSERT_FIELD(nbl_backend_v1, host_free, 152);
NBL_ASSERT_FIELD(nbl_backend_v1, append_coded, 160);

NBL_ASSERT_SIZE(nbl_note_payload);
NBL_ASSERT_FIELD(nbl_note_payload, magic, 0);
NBL_ASSERT_FIELD(nbl_note_payload, note_version, 4);
NBL_ASSERT_FIELD(nbl_note_payload, abi_major, 8);
NBL_ASSERT_FIELD(nbl_note_payload, abi_minor_min, 12);
NBL_ASSERT_FIELD(nbl_note_payload, abi_minor, 16);
NBL_ASSERT_FIELD(nbl_note_payload, numerics_version, 20);
NBL_ASSERT_FIELD(nbl_note_payload, layout_version, 24);
NBL_ASSERT_FIELD(nbl_note_payload, isa_level, 28);
NBL_ASSERT_FIELD(nbl_note_payload, cuda_version, 32);
NBL_ASSERT_FIELD(nbl_note_payload, reserved, 36);

NBL_ASSERT_SIZE(nbl_note);
NBL_ASSERT_FIELD(nbl_note, name_bytes, 0);
NBL_ASSERT_FIELD(nbl_note, payload_bytes, 4);
NBL_ASSERT_FIELD(nbl_note, type, 8);
NBL_ASSERT_FIELD(nbl_note, owner, 12);
NBL_ASSERT_FIELD(nbl_note, payload, 20);

#endif
