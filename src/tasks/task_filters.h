// Filters between a model's replies and the metrics: lm-evaluation-harness's regex, take_first and the like.
#pragma once

#include "tasks/task_config.h"

namespace octet {

// Throws kInvalidArgument for filters and arguments that are unknown, for patterns that do not compile, for filters of
// texts where a task's replies are log-likelihoods, and where no single reply is left at the end.
void check_filter(const TaskFilter& filter, TaskOutput output, const std::string& where);

// The reply that the metrics take, of a request's replies.
nlohmann::ordered_json filtered(const TaskFilter& filter, std::vector<nlohmann::ordered_json> replies,
                                const nlohmann::ordered_json& doc);

}  // namespace octet
