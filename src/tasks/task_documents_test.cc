// Documents of JSON lines, JSON and CSV; files that are absent, empty or damaged; those of built-in tasks.
#include <gtest/gtest.h>

#include "tasks/testing/task_folder.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

constexpr const char* kTask = "output_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: a\n";

std::string dump(const std::vector<ordered_json>& docs) { return ordered_json(docs).dump(); }

TEST(TaskDocuments, AreOfJsonInAnyForm) {
  const auto read = [](const char* text, const ordered_json& kwargs = ordered_json::object()) {
    return dump(parse_documents(text, "json", kwargs, "here"));
  };
  const std::string both = R"([{"a":1},{"a":2}])";
  EXPECT_EQ(read("{\"a\": 1}\n\n {\"a\": 2}\r\n"), both);
  EXPECT_EQ(read(" [{\"a\": 1}, {\"a\": 2}]"), both);
  EXPECT_EQ(read("{\"data\": [{\"a\": 1}, {\"a\": 2}]}", {{"field", "data"}}), both);
  const auto error = [&](const char* text, const ordered_json& kwargs = ordered_json::object()) {
    return error_of([&] { read(text, kwargs); });
  };
  EXPECT_NE(error("{\"a\": 1}\n{\"a\": ").find("here:2"), std::string::npos);
  EXPECT_NE(error("{\"a\": 1}\n[2]\n").find("here:2: not a JSON object: [2]"), std::string::npos);
  EXPECT_NE(error("[1]").find("document 0 is not an object"), std::string::npos);
  EXPECT_NE(error("{\"data\": 1}", {{"field", "rows"}}).find("no member \"rows\""), std::string::npos);
  EXPECT_NE(error(std::string(100000, '[').c_str()).find("here"), std::string::npos);
}

TEST(TaskDocuments, AreOfCsvWithPandasTypes) {
  const auto read = [](const char* text, const ordered_json& kwargs = ordered_json::object()) {
    return dump(parse_documents(text, "csv", kwargs, "here"));
  };
  EXPECT_EQ(read("a,b,c,d\n1,x,1.5,True\n2,\"y, \"\"z\"\"\n\",,False\n"),
            R"([{"a":1,"b":"x","c":1.5,"d":true},{"a":2,"b":"y, \"z\"\n","c":null,"d":false}])");
  EXPECT_EQ(read("1;2\n", {{"sep", ";"}, {"names", {"p", "q"}}, {"dtype", "str"}}), R"([{"p":"1","q":"2"}])");
  const auto error = [&](const char* text) { return error_of([&] { read(text); }); };
  EXPECT_NE(error("a,b\n1\n").find("record 1 has 1 fields, and there are 2 columns (a, b)"), std::string::npos);
  EXPECT_NE(error("a\n\"x\n").find("here:2: a quoted field without an end"), std::string::npos);
}

TEST(TaskDocuments, SayWhatIsMissing) {
  EXPECT_NE(TaskFolder(kTask, "").error().find("split test has no documents"), std::string::npos);
  EXPECT_NE(TaskFolder(kTask, "\n\n").error().find("split test has no documents"), std::string::npos);
  TaskFolder absent(kTask, "{}");
  remove_path(absent.file("data.jsonl"));
  EXPECT_NE(absent.error().find("the file of split test is not there: looked for " + absent.file("data.jsonl")),
            std::string::npos)
      << absent.error();
  TaskFolder hub(kTask, "{}");
  write_file(hub.path(), std::string("task: t\ndataset_path: super_glue\ntest_split: test\n") + kTask);
  EXPECT_NE(hub.error().find("super_glue: data sets of the Hub are not fetched"), std::string::npos) << hub.error();
  write_file(hub.path(), std::string("task: t\ndataset_path: json\ndataset_kwargs: {data_files: data.jsonl}\n"
                                     "test_split: test\n") +
                             kTask);
  EXPECT_NE(hub.error().find("data_files is of split train, and split test is wanted"), std::string::npos);
  EXPECT_NE(TaskFolder("validation_split: dev\noutput_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: [1]\n",
                       R"({"q": "a"})")
                .error()
                .find("doc_to_target gives no text: [1]"),
            std::string::npos);
}

// A folder of one task's files and the prompts of its first document, as [context, continuation] each.
ordered_json asked(const std::string& task, const std::map<std::string, std::string>& files, int64_t shots = 0) {
  const TempFolder folder;
  for (const auto& [name, text] : files) {
    make_folders(parent_folder(folder.file(name)));
    write_file(folder.file(name), text);
  }
  const TaskSelection selection = select_tasks({task}, folder.path());
  TaskRunOptions options;
  if (shots > 0) options.shots = shots;
  return TaskRunner(selection, options).first_arguments();
}

// [[context, continuation], ...]
ordered_json pairs(const std::vector<std::vector<std::string>>& texts) { return texts; }

TEST(BuiltinTasks, AskAsTheHarnessDoes) {
  EXPECT_EQ(
      asked(
          "hellaswag",
          {{"hellaswag/hellaswag_val.jsonl",
            R"({"activity_label": "Roof shingle removal", "ctx_a": "A man is sitting. [header] x", "ctx_b": "he Starts", "label": 1, "endings": ["is [title] a  b", "[x] rips"]})"}}),
      pairs({{"Roof shingle removal: A man is sitting. x He starts", " is. a b"},
             {"Roof shingle removal: A man is sitting. x He starts", "  rips"}}));
  EXPECT_EQ(asked("piqa", {{"valid.jsonl", R"({"goal": "g", "sol1": "s", "sol2": "t"})"}, {"valid-labels.lst", "1\n"}}),
            pairs({{"Question: g\nAnswer:", " s"}, {"Question: g\nAnswer:", " t"}}));
  const std::string arc =
      R"({"id": "1", "question": {"stem": "why?", "choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]}, "answerKey": "B"})";
  EXPECT_EQ(asked("arc_easy", {{"arc_easy/ARC-Easy-Test.jsonl", arc}}),
            pairs({{"Question: why?\nAnswer:", " a"}, {"Question: why?\nAnswer:", " b"}}));
  EXPECT_EQ(asked("openbookqa", {{"openbookqa/test.jsonl", arc}}), pairs({{"why?", " a"}, {"why?", " b"}}));
  EXPECT_EQ(asked("winogrande",
                  {{"winogrande/dev.jsonl",
                    R"({"sentence": "Ann saw Bo so _ ran. ", "option1": "Ann", "option2": "Bo", "answer": "2"})"}}),
            pairs({{"Ann saw Bo so Ann", " ran."}, {"Ann saw Bo so Bo", " ran."}}));
  EXPECT_EQ(asked("boolq", {{"dev.jsonl", R"({"question": "is it", "passage": "p", "answer": true})"}}),
            pairs({{"p\nQuestion: is it?\nAnswer:", " no"}, {"p\nQuestion: is it?\nAnswer:", " yes"}}));
  EXPECT_EQ(asked("lambada_openai", {{"lambada_test.jsonl", R"({"text": "a b  c"})"}}), pairs({{"a b ", " c"}}));
  const std::string targets =
      R"([{"question": "q", "mc1_targets": {"x": 1, "y": 0}, "mc2_targets": {"z": 1, "w": 0, "v": 1}}])";
  const ordered_json truthful = asked("truthfulqa_mc2", {{"mc_task.json", targets}});
  EXPECT_EQ(truthful.size(), 3u);
  EXPECT_EQ(truthful[2][1], " v");
  const auto prompt = truthful[0][0].get<std::string>();
  EXPECT_TRUE(prompt.starts_with("Q: What is human life expectancy in the United States?\nA: Human life"));
  EXPECT_TRUE(prompt.ends_with("Barcelona, Spain.\n\nQ: q\nA:"));
  const ordered_json gsm = asked("gsm8k",
                                 {{"gsm8k/test.jsonl", R"({"question": "1+1?", "answer": "#### 2"})"},
                                  {"gsm8k/train.jsonl", "{\"question\": \"2+2?\", \"answer\": \"#### 4\"}\n"}},
                                 1);
  EXPECT_EQ(gsm[0][0], "Question: 2+2?\nAnswer: #### 4\n\nQuestion: 1+1?\nAnswer:");
  const ordered_json mmlu = asked(
      "mmlu_anatomy",
      {{"mmlu/test/anatomy_test.csv", "\"Which, then? \",1,2,x,y,B\n"}, {"mmlu/dev/anatomy_dev.csv", "q,a,b,c,d,C\n"}},
      1);
  EXPECT_EQ(mmlu[0],
            ordered_json({"The following are multiple choice questions (with answers) about anatomy.\n\nq\nA. a\n"
                          "B. b\nC. c\nD. d\nAnswer: C\n\nWhich, then?\nA. 1\nB. 2\nC. x\nD. y\nAnswer:",
                          " A"}));
  EXPECT_EQ(
      asked("wikitext", {{"wiki.test.raw", " \n = A title = \n \n x @-@ y , ( z ) \n = = Part = = \n = B = \n b \n"}}),
      pairs({{" = A title =\n\nx-y, (z)\n== Part == "}}));
}

TEST(BuiltinTasks, SayWhatTheirFilesLack) {
  const auto error = [](const char* task, const std::map<std::string, std::string>& files) {
    return error_of([&] { asked(task, files); });
  };
  EXPECT_NE(error("hellaswag", {}).find("hellaswag/hellaswag_val.jsonl"), std::string::npos);
  EXPECT_NE(error("hellaswag", {{"hellaswag_val.jsonl", R"({"ctx_a": "a"})"}}).find("document 0: no text 'ctx_b'"),
            std::string::npos);
  EXPECT_NE(error("piqa", {{"valid.jsonl", R"({"goal": "g"})"}, {"valid-labels.lst", "1\n0\n"}})
                .find("2 labels for the 1 documents"),
            std::string::npos);
  EXPECT_NE(error("boolq", {{"dev.jsonl", R"({"passage": "p"})"}}).find("answer: null (want true or false)"),
            std::string::npos);
  EXPECT_NE(error("truthfulqa_mc1", {{"mc_task.json", R"([{"question": "q"}])"}}).find("no object 'mc1_targets'"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
