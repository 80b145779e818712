// The KServe v2 protocol over the engine on the fake runner, and its tensors alone.
#include "serve/kserve.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "infer/testing/engine_test.h"
#include "serve/kserve_tensors.h"
#include "serve/server.h"
#include "serve/testing/answer.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

constexpr const char* kLengthField = "Inference-Header-Content-Length";

std::string bytes_of(std::string_view text) {
  const auto size = static_cast<uint32_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&size), 4).append(text);
}
std::string bytes_of(int32_t number) { return {reinterpret_cast<const char*>(&number), 4}; }

Json tensor(const std::string& name, const std::string& datatype, const Json& shape, const Json& data) {
  return {{"name", name}, {"datatype", datatype}, {"shape", shape}, {"data", data}};
}
Json binary_tensor(const std::string& name, const std::string& datatype, const Json& shape, size_t size) {
  return {{"name", name}, {"datatype", datatype}, {"shape", shape}, {"parameters", {{"binary_data_size", size}}}};
}

std::string api_error_of(const std::function<void()>& call) {
  try {
    call();
    return "(no error)";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.what();
  }
}

TEST(KserveTensors, BothFormsAreReadAlike) {
  const std::vector<std::tuple<const char*, Json, std::string>> cases = {
      {"BYTES", {"a", "", "\u00e9"}, bytes_of("a") + bytes_of("") + bytes_of("\u00e9")},
      {"BOOL", {true, false, true}, std::string("\1\0\1", 3)},
      {"INT8", {-128, 0, 127}, std::string("\x80\0\x7f", 3)},
      {"UINT16", {0, 1, 65535}, std::string("\0\0\1\0\xff\xff", 6)},
      {"INT32", {-1, 0, 7}, bytes_of(-1) + bytes_of(0) + bytes_of(7)},
      {"INT64",
       {INT64_MIN, 0, INT64_MAX},
       std::string("\0\0\0\0\0\0\0\x80", 8) + std::string(8, '\0') + std::string(7, '\xff') + "\x7f"},
      {"UINT64", {0, 1, UINT64_MAX}, std::string(8, '\0') + "\1" + std::string(7, '\0') + std::string(8, '\xff')},
      {"FP32", {0.5, -1.0, 0.0}, std::string("\0\0\0\x3f\0\0\x80\xbf\0\0\0\0", 12)},
      {"FP64", {1.0, 0.0, 0.0}, std::string("\0\0\0\0\0\0\xf0\x3f", 8) + std::string(16, '\0')},
  };
  for (const auto& [datatype, values, bytes] : cases) {
    Json nested = Json::array();
    nested.push_back(values);  // rows may be lists
    const auto written = read_tensors(Json::array({tensor("x", datatype, {1, 3}, nested)}), "");
    const auto binary = read_tensors(Json::array({binary_tensor("x", datatype, {3, 1}, bytes.size())}), bytes);
    ASSERT_EQ(binary.size(), 1u);
    EXPECT_EQ(Json(written[0].values), values) << datatype;
    EXPECT_EQ(Json(binary[0].values), values) << datatype;
    EXPECT_EQ(binary[0].shape, (std::vector<int64_t>{3, 1}));
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    std::string out = "before";
    write_tensor(binary[0], /*binary=*/true, list, out);
    EXPECT_EQ(out, "before" + bytes) << datatype;
    EXPECT_EQ(list[0]["parameters"]["binary_data_size"], bytes.size());
    write_tensor(binary[0], /*binary=*/false, list, out);
    EXPECT_EQ(Json::parse(list[1]["data"].dump()), values);
  }
}

TEST(KserveTensors, WhatDoesNotFitIsNamed) {
  const auto error = [](const Json& input, const std::string& bytes = {}) {
    return api_error_of([&] { read_tensors(Json::array({input}), bytes); });
  };
  const std::vector<std::tuple<Json, std::string, std::string>> cases = {
      {5, "", "inputs is 5 (want an object)"},
      {Json::object(), "", "inputs.name is missing"},
      {tensor("x", "FP16", {1}, {1}), "", "inputs.x has the datatype 'FP16', which is not supported"},
      {tensor("x", "INT32", {-1}, {1}), "", "inputs.shape is [-1]"},
      {tensor("x", "INT32", {1000, 1000, 1000}, {1}), "", "inputs.x has more than 1000000 elements"},
      {tensor("x", "INT32", {2}, {1}), "", "inputs.x has 1 values (want 2, by its shape)"},
      {tensor("x", "INT32", {1}, {2147483648}), "", "inputs.x contains 2147483648 (want INT32)"},
      {tensor("x", "UINT8", {1}, {-1}), "", "inputs.x contains -1 (want UINT8)"},
      {tensor("x", "INT32", {1}, {1.5}), "", "inputs.x contains 1.5 (want INT32)"},
      {tensor("x", "BOOL", {1}, {1}), "", "inputs.x contains 1 (want BOOL)"},
      {tensor("x", "BYTES", {1}, {1}), "", "inputs.x contains 1 (want BYTES)"},
      {tensor("x", "BYTES", {1}, "text"), "", "inputs.data is \"text\" (want a list)"},
      {tensor("x", "BYTES", {1}, nullptr), "", "inputs.x: want its values either as data or as binary_data_size bytes"},
      {binary_tensor("x", "INT32", {2}, 4), bytes_of(1),
       "its shape requires 8 bytes of binary data, but binary_data_size is 4"},
      {binary_tensor("x", "INT32", {2}, 8), bytes_of(1), "inputs.x.parameters.binary_data_size is 8"},
      {binary_tensor("x", "INT32", {1}, 4), bytes_of(1) + "more", "4 bytes after the JSON are of no tensor"},
      {binary_tensor("x", "BYTES", {1}, 3), std::string(3, '\0'), "inputs.x: its binary data ends within element 0"},
      {binary_tensor("x", "BYTES", {1}, 5), bytes_of(-1) + "a", "inputs.x: its binary data ends within element 0"},
      {binary_tensor("x", "BYTES", {1}, 5), bytes_of("\xff"), "inputs.x: element 0 is not UTF-8"},
      {binary_tensor("x", "BYTES", {2}, 5), bytes_of("a"), "inputs.x has 1 values (want 2, by its shape)"},
  };
  for (const auto& [input, bytes, message] : cases)
    EXPECT_NE(error(input, bytes).find(message), std::string::npos) << input << " gives " << error(input, bytes);
  Json shared = binary_tensor("x", "BYTES", {1}, 0);
  shared["parameters"] = {{"shared_memory_region", "r"}};
  EXPECT_NE(error(shared).find("shared memory is not supported"), std::string::npos);
  EXPECT_NE(api_error_of([] { read_tensors("x", ""); }).find("inputs is not a list"), std::string::npos);
  for (const char* size : {"0", "-1", "x", "3 ", "99999999999999999999", "4"})
    EXPECT_NE(api_error_of([&] { split_body("{} ", size); }).find(kLengthField), std::string::npos) << size;
  EXPECT_EQ(split_body("{}\xff", "2").bytes, "\xff");
}

class KserveTest : public testing::Test {
 protected:
  KserveTest() : engine_(test_engine({.limits = fake_limits()})), tokenizer_(test_tokenizer()) {
    model_.engine = engine_.get(), model_.tokenizer = tokenizer_.get();
    model_.names = {"tiny"}, model_.version = "0.1", model_.max_texts = 16;
    server_ = std::make_unique<Server>(model_, ServerOptions{.http = {.port = 0}});
  }
  Answer get(const std::string& path) const { return ask(server_->port(), "GET", path); }
  Answer post(const std::string& action, const std::string& body, const std::string& fields = {}) const {
    return ask(server_->port(), "POST", "/v2/models/tiny/" + action, body, fields);
  }
  static std::string error(const Answer& answer) { return answer.json().at("error").get<std::string>(); }

  const Collected want_ =
      alone({.prompt_ids = {1, 2, 3}, .sampling = {.temperature = 0}, .max_tokens = 9}, 0, fake_limits());
  std::unique_ptr<EngineLoop> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ApiModel model_;
  std::unique_ptr<Server> server_;
};

TEST_F(KserveTest, HealthAndMetadata) {
  for (const char* path :
       {"/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready", "/v2/models/tiny/versions/1/ready"})
    EXPECT_EQ(get(path).status, 200) << path;
  EXPECT_EQ(get("/v2/models/other/ready").status, 404);
  EXPECT_EQ(get("/v2/models/tiny/versions/2/ready").status, 404);
  EXPECT_EQ(get("/v2").json()["name"], "octet");
  EXPECT_EQ(get("/v2/models/tiny").body, get("/v2/models/tiny/versions/1").body);
  const Json model = get("/v2/models/tiny").json(), config = get("/v2/models/tiny/config").json();
  EXPECT_EQ(model["versions"], Json::array({"1"}));
  EXPECT_EQ(model["inputs"][0], Json::parse(R"({"name": "text_input", "datatype": "BYTES", "shape": [1]})"));
  EXPECT_EQ(model["outputs"][1], Json::parse(R"({"name": "output_ids", "datatype": "INT32", "shape": [-1]})"));
  EXPECT_EQ(config["input"][1],
            Json::parse(R"({"name": "input_ids", "data_type": "TYPE_INT32", "dims": [-1], "optional": true})"));
  EXPECT_EQ(config["output"][0], Json::parse(R"({"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]})"));
  EXPECT_EQ(error(get("/v2/repository/index")), "there is no /v2/repository/index");
  EXPECT_EQ(get("/v2/models/tiny/infer").status, 405);
  server_->set_unready();
  EXPECT_EQ(get("/v2/health/live").status, 200);
  EXPECT_EQ(get("/v2/health/ready").status, 503);
  EXPECT_EQ(get("/v2/models/tiny/ready").status, 503);
}

TEST_F(KserveTest, InferInJson) {
  const Json body = {{"id", "7"},
                     {"inputs",
                      {tensor("text_input", "BYTES", {1, 1}, Json::array({Json::array({"BCD"})})),
                       tensor("max_tokens", "INT32", {1, 1}, {9}), tensor("bad_words", "BYTES", {1, 1}, {""})}},
                     {"outputs", {{{"name", "output_ids"}}, {{"name", "text_output"}}}},
                     {"parameters", {{"temperature", 0}}}};
  const Answer answer = post("versions/1/infer", body.dump());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const auto size = static_cast<int64_t>(want_.ids.size());
  EXPECT_EQ(answer.json(), Json({{"id", "7"},
                                 {"model_name", "tiny"},
                                 {"model_version", "1"},
                                 {"outputs",
                                  {tensor("output_ids", "INT32", Json::array({size}), want_.ids),
                                   tensor("text_output", "BYTES", Json::array({1}), {want_.text})}}}));
}

TEST_F(KserveTest, InferInBytes) {
  const std::string tail = bytes_of(1) + bytes_of(2) + bytes_of(3) + bytes_of(9) + std::string(4, '\0');
  const std::string head =
      Json{{"inputs",
            {binary_tensor("input_ids", "INT32", {1, 3}, 12), binary_tensor("max_tokens", "INT32", {1}, 4),
             binary_tensor("temperature", "FP32", {1}, 4)}},
           {"outputs", {{{"name", "text_output"}}, {{"name", "output_ids"}, {"parameters", {{"binary_data", false}}}}}},
           {"parameters", {{"binary_data_output", true}}}}
          .dump();
  const Answer answer =
      post("infer", head + tail, std::string(kLengthField) + ": " + std::to_string(head.size()) + "\r\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const size_t at = answer.head.find(std::string("\r\n") + kLengthField + ": ");
  ASSERT_NE(at, std::string::npos) << answer.head;
  const size_t length = std::stoul(answer.head.substr(at + strlen(kLengthField) + 4));
  const Json json = Json::parse(answer.body.substr(0, length));
  EXPECT_EQ(answer.body.substr(length), bytes_of(want_.text));
  EXPECT_EQ(json["outputs"][0], binary_tensor("text_output", "BYTES", Json::array({1}), 4 + want_.text.size()));
  EXPECT_EQ(json["outputs"][1]["data"], want_.ids);
  EXPECT_NE(answer.head.find("application/octet-stream"), std::string::npos);
}

TEST_F(KserveTest, GenerateWholeAndStreamed) {
  Json body = {
      {"id", "x"}, {"text_input", "BCD"}, {"max_tokens", 9}, {"stop_words", ""}, {"parameters", {{"temperature", 0}}}};
  const Json whole = {{"id", "x"}, {"model_name", "tiny"}, {"model_version", "1"}, {"text_output", want_.text}};
  const Answer answer = post("generate", body.dump());
  EXPECT_EQ(answer.json(), whole) << answer.body;
  body["parameters"]["stream"] = true;
  EXPECT_NE(error(post("generate", body.dump())).find("generate_stream"), std::string::npos);
  const Answer streamed = post("generate_stream", body.dump());
  EXPECT_NE(streamed.head.find("Content-Type: text/event-stream"), std::string::npos);
  std::istringstream lines(streamed.body);
  std::string text;
  int pieces = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const Json json = Json::parse(line.substr(strlen("data: ")));
    EXPECT_EQ(json["model_name"], "tiny");
    text += json["text_output"].get<std::string>(), ++pieces;
  }
  EXPECT_EQ(text, want_.text);
  EXPECT_GT(pieces, 0);
  body["parameters"]["stream"] = false, body["exclude_input_in_output"] = false;
  EXPECT_EQ(post("generate", body.dump()).json()["text_output"], "BCD" + want_.text);
  const Json vllm = {{"text_input", "BCD"}, {"sampling_parameters", R"({"temperature": 0, "max_tokens": 9})"}};
  EXPECT_EQ(post("generate", vllm.dump()).json()["text_output"], want_.text);
  const std::string stop = want_.text.substr(2, 1);
  const Json stopped = {{"input_ids", {1, 2, 3}}, {"max_tokens", 9}, {"temperature", 0}, {"stop_words", {"", stop}}};
  EXPECT_EQ(post("generate", stopped.dump()).json()["text_output"], want_.text.substr(0, want_.text.find(stop)));
  body["max_tokens"] = INT32_MAX;  // the context is what bounds it, not the queue
  EXPECT_EQ(post("generate", body.dump()).status, 200);
  const Json ended = {{"input_ids", {1, 2, 3}}, {"max_tokens", 9}, {"temperature", 0}, {"end_id", want_.ids[1]}};
  EXPECT_EQ(post("generate", ended.dump()).json()["text_output"].get<std::string>().size(), 1u);
}

TEST_F(KserveTest, WhatCannotBeServedIsNamed) {
  const Json prompt = tensor("text_input", "BYTES", {1}, {"BCD"});
  const auto infer = [&](const Json& input) { return Json{{"inputs", Json::array({prompt, input})}}; };
  const std::vector<std::pair<Json, std::string>> infers = {
      {Json::object(), "inputs is missing"},
      {{{"inputs", Json::array()}}, "text_input is missing"},
      {infer(prompt), "text_input is given twice"},
      {infer(tensor("QUERY", "BYTES", {1}, {"a"})), "inputs.QUERY is not an input of this model"},
      {infer(tensor("max_tokens", "FP32", {1}, {1})), "inputs.max_tokens has the datatype FP32 (want INT32)"},
      {infer(tensor("max_tokens", "INT64", {2}, {1, 2})), "inputs.max_tokens has the shape [2]"},
      {infer(tensor("max_tokens", "INT32", {2, 1}, {1, 2})), "inputs.max_tokens has the shape [2,1]"},
      {infer(tensor("max_tokens", "INT32", {1}, {0})), "max_tokens is 0"},
      {infer(tensor("input_ids", "INT32", {1}, {61})), "input_ids is [61]"},
      {infer(tensor("input_ids", "INT32", {1}, {1})), "want either text_input or input_ids"},
      {infer(tensor("temperature", "FP32", {1}, {-1})), "temperature is -1"},
      {infer(tensor("beam_width", "INT32", {1}, {2})), "n is 2"},
      {infer(tensor("return_log_probs", "BOOL", {1}, {true})), "return_log_probs is true"},
      {{{"inputs", {prompt}}, {"outputs", {{{"name", "logits"}}}}}, "want text_output or output_ids"},
      {{{"inputs", {prompt}}, {"outputs", {{{"name", "text_output"}, {"parameters", {{"classification", 1}}}}}}},
       "classification is not supported"},
      {{{"inputs", {prompt}}, {"parameters", {{"sequence_id", 3}}}}, "sequence_id is 3"},
      {{{"inputs", {prompt}}, {"parameters", {{"sampling_parameters", "["}}}}, "the body"},
  };
  for (const auto& [body, message] : infers) {
    const Answer answer = post("infer", body.dump());
    EXPECT_EQ(answer.status, 400) << body << " gives " << answer.body;
    EXPECT_NE(error(answer).find(message), std::string::npos) << body << " gives " << answer.body;
  }
  const std::vector<std::pair<std::string, std::string>> generates = {
      {"", "the body"},
      {R"({"text_input": ""})", "the prompt is empty"},
      {R"({"text_input": 5})", "text_input is 5"},
      {R"({"text_input": "B", "parameters": 5})", "parameters is not an object"},
      {R"({"text_input": "B", "top_k": 1, "parameters": {"runtime_top_k": 1}})", "given twice"},
      {R"({"text_input": "B", "input_lengths": 2})", "the prompt has 1 tokens"},
      {R"({"text_input": ")" + std::string(65, 'B') + "\"}", "65"},
  };
  for (const auto& [body, message] : generates) {
    const Answer answer = post("generate_stream", body);
    EXPECT_EQ(answer.status, 400) << body << " gives " << answer.body;
    EXPECT_NE(error(answer).find(message), std::string::npos) << body << " gives " << answer.body;
  }
  EXPECT_EQ(post("generate", "{}", "Content-Encoding: deflate\r\n").status, 415);
  EXPECT_EQ(ask(server_->port(), "POST", "/v2/models/other/infer", "{}").status, 404);
  EXPECT_EQ(error(post("versions/3/infer", "{}")), "the model 'tiny' has no version '3' (want 1)");
}

TEST_F(KserveTest, TimeoutsAreMicroseconds) {
  const auto slow = test_engine({.limits = fake_limits(), .step_seconds = 5e-3});
  ApiModel model = model_;
  model.engine = slow.get();
  const Server server(model, ServerOptions{.http = {.port = 0}});
  const Json body = {{"text_input", "B"}, {"max_tokens", 50}, {"ignore_eos", true}, {"timeout", 20'000}};
  const Answer answer = ask(server.port(), "POST", "/v2/models/tiny/generate", body.dump());
  EXPECT_EQ(answer.status, 504) << answer.body;
}

}  // namespace
}  // namespace octet::serve
