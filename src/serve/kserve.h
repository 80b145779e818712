// The KServe v2 protocol, "open inference", over REST with Triton's extensions: model configuration, binary tensors and
// generate. Names of tensors and parameters are those of Triton's backends for TensorRT-LLM and vLLM.
#pragma once

#include "serve/api.h"
#include "serve/api_request.h"

namespace octet::serve {

// All throw ApiError.
std::string show_kserve_server(const ApiRequest& request, const ApiModel& model);
std::string show_kserve_model(const ApiRequest& request, const ApiModel& model);
std::string show_kserve_config(const ApiRequest& request, const ApiModel& model);
// The jobs answer `reply`.
Prepared prepare_kserve_infer(const ApiRequest& request, const ApiModel& model, HttpReply reply);
Prepared prepare_kserve_generate(const ApiRequest& request, const ApiModel& model, HttpReply reply);
Prepared prepare_kserve_stream(const ApiRequest& request, const ApiModel& model, HttpReply reply);

// Whether the path asks if a model is ready. ApiError 404 for another model than this.
bool asks_model_ready(std::string_view path, const ApiModel& model);
// {"error": "..."}
std::string kserve_error(const ApiError& error);

}  // namespace octet::serve
