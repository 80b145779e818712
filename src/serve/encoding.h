// Wire forms over an engine of whole texts: /v1/embeddings (OpenAI), /v1/rerank (Jina, Cohere), /v1/score (vLLM).
#pragma once

#include "serve/api_request.h"

namespace octet::serve {

Prepared prepare_embeddings(const ApiRequest& request, const ApiModel& model, HttpReply reply);
// Relevance of documents to a query, and scores of pairs: of a cross encoder its one class, else the cosine of two
// embeddings.
Prepared prepare_rerank(const ApiRequest& request, const ApiModel& model, HttpReply reply);
Prepared prepare_score(const ApiRequest& request, const ApiModel& model, HttpReply reply);

}  // namespace octet::serve
