// /v1/rerank and /v1/score. A cross encoder takes the two texts of a pair as one sequence; of other models both texts
// are embedded, and the score is the cosine.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "serve/encoding.h"
#include "serve/encoding_job.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

// Scores of pairs (left[i], right[i]); one left text stands for all pairs.
class PairJob : public EncodingJob {
 public:
  PairJob(const ApiModel& model, const char* id_prefix, HttpReply reply)
      : EncodingJob(model, id_prefix, std::move(reply)), crosses_(model.engine->encoder()->classifies) {}

  std::vector<GenerationRequest> take(const InputReader& reader, const Texts& left, const Texts& right) {
    lefts_ = left.size(), pairs_ = right.size();
    std::vector<GenerationRequest> requests;
    if (crosses_) {
      for (size_t i = 0; i < right.size(); ++i)
        requests.push_back(reader.text(left[left.size() == 1 ? 0 : i], right[i]));
      return requests;
    }
    for (const Texts* list : {&left, &right}) {
      for (const std::string& text : *list) {
        requests.push_back(reader.text(text));
        requests.back().normalize = true;
      }
    }
    return requests;
  }

 protected:
  std::vector<float> scores() const {
    std::vector<float> scores(pairs_);
    for (size_t i = 0; i < pairs_; ++i) {
      if (crosses_) {
        scores[i] = values_[i].at(0);
        continue;
      }
      const std::vector<float>&a = values_[lefts_ == 1 ? 0 : i], &b = values_[lefts_ + i];
      scores[i] = static_cast<float>(std::inner_product(a.begin(), a.end(), b.begin(), 0.0));
    }
    return scores;
  }

 private:
  const bool crosses_;
  size_t lefts_ = 0, pairs_ = 0;
};

class Scores final : public PairJob {
 public:
  Scores(const ApiModel& model, HttpReply reply) : PairJob(model, "score-", std::move(reply)) {}

 private:
  std::string whole(const Usage& usage) override {
    Json data = Json::array();
    for (const float score : scores()) data.push_back({{"index", data.size()}, {"object", "score"}, {"score", score}});
    return dump({{"id", reply_id},
                 {"object", "list"},
                 {"created", created_},
                 {"model", model_.names[0]},
                 {"data", data},
                 {"usage", usage_of(usage)}});
  }
};

class Ranking final : public PairJob {
 public:
  Ranking(const ApiModel& model, HttpReply reply) : PairJob(model, "rerank-", std::move(reply)) {}
  Texts documents;  // shown in the reply; empty: they are not
  size_t top = 0;

 private:
  std::string whole(const Usage& usage) override {
    const std::vector<float> relevance = scores();
    std::vector<size_t> order(relevance.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return relevance[a] > relevance[b]; });
    order.resize(std::min(order.size(), top));
    Json results = Json::array();
    for (const size_t i : order) {
      results.push_back({{"index", i}, {"relevance_score", relevance[i]}});
      if (!documents.empty()) results.back()["document"] = {{"text", documents[i]}};
    }
    return dump({{"id", reply_id},
                 {"model", model_.names[0]},
                 {"usage", {{"total_tokens", usage.prompt}}},
                 {"results", results}});
  }
};

// Throws for a classifier of several classes, whose values are no score.
void check_scores(const ApiModel& model) {
  const EncoderFacts& facts = *model.engine->encoder();
  if (facts.classifies && facts.width != 1)
    throw ApiError(
        fmt::format("'{}' has {} classes: only a classifier of one class gives scores", model.names[0], facts.width));
}

}  // namespace

Prepared prepare_rerank(const ApiRequest& request, const ApiModel& model, HttpReply reply) {
  check_scores(model);
  Fields fields(request.json);
  const InputReader reader(fields, model);
  const std::optional<std::string> query = fields.text("query");
  if (!query) fields.fail("query", "want a string");
  const Json* list = fields.find("documents");
  if (list == nullptr || !list->is_array() || list->empty() || list->size() > kMaxInputs)
    fields.fail("documents", fmt::format("want a list of 1 to {} strings", kMaxInputs));
  Texts documents;
  for (const Json& one : *list) {
    const bool object = one.is_object() && one.contains("text");
    const Json& text = object ? one["text"] : one;
    if (!text.is_string()) fields.fail("documents", "want strings, or objects with a \"text\"");
    documents.push_back(text.get<std::string>());
  }
  auto job = std::make_shared<Ranking>(model, std::move(reply));
  job->top = static_cast<size_t>(fields.integer("top_n", 1, INT32_MAX).value_or(std::ssize(documents)));
  std::vector<GenerationRequest> prompts = job->take(reader, {*query}, documents);
  if (fields.flag("return_documents").value_or(true)) job->documents = std::move(documents);
  return prepared_job(std::move(job), std::move(prompts), fields);
}

Prepared prepare_score(const ApiRequest& request, const ApiModel& model, HttpReply reply) {
  check_scores(model);
  Fields fields(request.json);
  const InputReader reader(fields, model);
  const Texts left = fields.texts("text_1", kMaxInputs), right = fields.texts("text_2", kMaxInputs);
  if (left.empty()) fields.fail("text_1", "want a string or a list of strings");
  if (right.empty()) fields.fail("text_2", "want a string or a list of strings");
  if (left.size() != 1 && left.size() != right.size())
    fields.fail("text_1", fmt::format("{} strings for {} of text_2 (want one, or as many)", left.size(), right.size()));
  auto job = std::make_shared<Scores>(model, std::move(reply));
  std::vector<GenerationRequest> prompts = job->take(reader, left, right);
  return prepared_job(std::move(job), std::move(prompts), fields);
}

}  // namespace octet::serve
