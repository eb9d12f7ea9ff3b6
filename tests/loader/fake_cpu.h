/* SPDX-License-Identifier: Apache-2.0 */
/** @file fake_cpu.h @brief Included before elf_note.c by test_levels: the CPU is that of the test. */
#ifndef FAKE_CPU_H
#define FAKE_CPU_H

int fake_cpu_supports(const char *feature);
#define __builtin_cpu_supports(feature) fake_cpu_supports(feature)

#endif
