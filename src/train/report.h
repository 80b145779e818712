// The report of a run: one HTML page without external resources, made from log.jsonl alone. Loss, and under recipe auto
// the precision of every GEMM over time, the statistics of every tensor, and the switches with their reasons.
#pragma once

#include <string>

namespace octet {

// Reads RUN/log.jsonl and writes RUN/report.html; returns its path. Entries logged after a checkpoint
// that a later run resumed from are dropped. Throws kNotFound without a log, kCorrupt naming the line of a damaged one.
std::string write_report(const std::string& run_folder);

}  // namespace octet
