// Classes of texts by fastText, with a model trained here, and by CLD2. Skipped where the build has no such library.
#include "corpus/classify_text.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#ifdef OCTET_FASTTEXT
#include <fasttext/fasttext.h>
#endif

namespace octet {
namespace {

TEST(ClassifyText, ByAFastTextModel) {
#ifdef OCTET_FASTTEXT
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += i % 2 ? "__label__en the and of that is with\n" : "__label__de der und die das ist mit\n";
  write_file(folder.file("train.txt"), lines);
  fasttext::Args args;
  args.input = folder.file("train.txt");
  args.output = folder.file("model");
  args.model = fasttext::model_name::sup;
  args.loss = fasttext::loss_name::softmax;
  args.dim = 8, args.epoch = 20, args.lr = 0.5, args.minCount = 1, args.minn = 2, args.maxn = 3, args.bucket = 1000;
  args.thread = 1, args.verbose = 0;
  fasttext::FastText model;
  model.train(args);
  model.saveModel(folder.file("model.bin"));
  const auto classifier = open_fasttext(folder.file("model.bin"));
  const TextClass german = classifier->best("die Katze\nund der Hund");
  EXPECT_EQ(german.name, "de");
  EXPECT_GT(german.score, 0.9);
  EXPECT_NEAR(classifier->score("die Katze\nund der Hund", "__label__de"), german.score, 1e-6);
  EXPECT_NEAR(classifier->score("die Katze\nund der Hund", "en"), 1 - german.score, 1e-3);
  EXPECT_NE(error_of([&] { classifier->score("a", "__label__hq"); }).find("no class '__label__hq'"), std::string::npos);
  EXPECT_NE(error_of([&] { open_fasttext(folder.file("train.txt")); }).find("is no fastText model"), std::string::npos);
  EXPECT_NE(error_of([&] { open_fasttext(folder.file("none.bin")); }).find("none.bin: cannot open"), std::string::npos);
#else
  EXPECT_NE(error_of([&] { open_fasttext("lid.176.bin"); }).find("install libfasttext-dev"), std::string::npos);
#endif
}

TEST(ClassifyText, ByCld2) {
  if (!has_cld2()) {
    EXPECT_NE(error_of([&] { open_cld2(); }).find("install libcld2-dev"), std::string::npos);
    return;
  }
  const auto classifier = open_cld2();
  const TextClass english = classifier->best("This is a plain English sentence about the weather and the time of day.");
  EXPECT_EQ(english.name, "en");
  EXPECT_GT(english.score, 0.9);
  EXPECT_EQ(classifier->best("Das ist ein ganz gewöhnlicher deutscher Satz über das Wetter und die Tageszeit.").name,
            "de");
  EXPECT_EQ(classifier->best("12345 67890").name, "");
}

}  // namespace
}  // namespace octet

#ifdef OCTET_FASTTEXT
// Debian's libfasttext.so has a main of its own, which a linker finds before that of GoogleTest.
int main(int count, char** words) {
  testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
#endif
