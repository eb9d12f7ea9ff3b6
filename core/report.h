/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file report.h
 * @brief The record of what the loader tried; shared by a runtime, which adds to it, and its caller, who reads it.
 */
#ifndef NBL_REPORT_H
#define NBL_REPORT_H

#include "internal.h"

/** An attempt while it is under way; strings are borrowed, NULL stands for "". */
typedef nbl_load_attempt nbl_attempt;

/** Creates an empty report with one reference, to be dropped with nbl_api_report_free; NULL when there is no memory. */
nbl_report *nbl_report_create(void);

/** Adds a reference. */
nbl_report *nbl_report_share(nbl_report *report);

/** Appends a copy of an attempt; without memory the attempt is not recorded. */
void nbl_report_add(nbl_report *report, const nbl_attempt *attempt);

#endif
