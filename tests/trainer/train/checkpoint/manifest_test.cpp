#include "trainer/train/checkpoint/manifest.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"

namespace narrowcast::checkpoint {
namespace {

using nlohmann::json;
using testing::error_message;
using ::testing::HasSubstr;

Manifest example() {
  return {.step = 100,
          .world_size = 2,
          .files = {{kReplicaName, {5, "aa"}}, {rank_file_name(0), {6, "bb"}}, {rank_file_name(1), {7, "cc"}}},
          .settings = {{"hook", "int8"}, {"learning_rate", 0.1}},
          .circumstances = {{"ranks", 2}},
          .training = {{"buckets", {{"a", "b"}}}}};
}

std::string complaint(const std::string& text) {
  return error_message<CorruptInputError>([&] { parse_manifest(text, "DIR/manifest.json"); });
}

// A manifest with a correct checksum and any other content.
std::string with(const std::function<void(json&)>& change) {
  json object = json::parse(format_manifest(example()));
  change(object);
  object.erase("sha256");
  files::Sha256 hash;
  hash.update(object.dump());
  object["sha256"] = hash.hex();
  return object.dump();
}

TEST(Manifest, ComesBackAsItWas) {
  const Manifest read = parse_manifest(format_manifest(example()), "m");
  EXPECT_EQ(read.step, 100);
  EXPECT_EQ(read.world_size, 2);
  ASSERT_EQ(read.files.size(), 3U);
  EXPECT_EQ(read.files[2].name, "rank-00001.safetensors");
  EXPECT_EQ(read.files[2].digest, (files::FileDigest{7, "cc"}));
  EXPECT_EQ(read.settings, example().settings);
  EXPECT_EQ(read.circumstances, example().circumstances);
  EXPECT_EQ(read.training, example().training);
  EXPECT_EQ(read.run_id, "");
}

TEST(Manifest, HasTheRunThatWroteItIfItHasAName) {
  Manifest manifest = example();
  EXPECT_THAT(format_manifest(manifest), ::testing::Not(HasSubstr("run_id")));
  manifest.run_id = "job \"7\"";
  EXPECT_EQ(parse_manifest(format_manifest(manifest), "m").run_id, manifest.run_id);
  EXPECT_THAT(complaint(with([](json& object) { object["run_id"] = 7; })), HasSubstr("'run_id'"));
}

TEST(Manifest, NotAByteMayBeMissingOrOther) {
  const std::string text = format_manifest(example());
  for (size_t length = 0; length + 2 < text.size(); ++length) {
    ASSERT_THAT(complaint(text.substr(0, length)), HasSubstr("DIR/manifest.json: ")) << length;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    // White space between the values is ignored.
    if (std::isspace(static_cast<unsigned char>(text[i])) == 0) {
      ASSERT_THAT(complaint(changed), HasSubstr("DIR/manifest.json: ")) << i;
    }
  }
}

TEST(Manifest, DeepJsonIsAnErrorNotTheEndOfTheStack) {
  EXPECT_EQ(complaint(std::string(60'000, '[')), "DIR/manifest.json: is JSON nested more than 64 deep");
  const std::string deep = std::string(60'000, '[') + std::string(60'000, ']');
  EXPECT_EQ(complaint(R"({"format": "narrowcast checkpoint", "format_version": 1, "settings": )" + deep + "}"),
            "DIR/manifest.json: is JSON nested more than 64 deep");
}

TEST(Manifest, SaysWhatIsWrong) {
  EXPECT_EQ(complaint("[]"), "DIR/manifest.json: is not a JSON object");
  EXPECT_THAT(complaint(with([](json& m) { m["format"] = "zip"; })), HasSubstr("is not of the format"));
  EXPECT_EQ(complaint(with([](json& m) { m["format_version"] = 2; })),
            "DIR/manifest.json: has the format version 2, but this program reads version 1");
  json other_step = json::parse(format_manifest(example()));
  other_step["step"] = 101;
  EXPECT_EQ(complaint(other_step.dump()), "DIR/manifest.json: its SHA-256 differs from its entry sha256");
  EXPECT_THAT(complaint(with([](json& m) { m.erase("settings"); })), HasSubstr("lacks 'settings'"));
  EXPECT_THAT(complaint(with([](json& m) { m["training"] = 3; })), HasSubstr("'training' is not an object"));
  EXPECT_THAT(complaint(with([](json& m) { m["step"] = -1; })), HasSubstr("'step' is -1"));
  EXPECT_THAT(complaint(with([](json& m) { m["world_size"] = 3; })), HasSubstr("one for each of 3 ranks"));
  EXPECT_THAT(complaint(with([](json& m) { m["files"][1]["name"] = "../x"; })),
              HasSubstr("names the file '../x' instead of rank-00000.safetensors"));
}

const json kSaved = {{"hook", "int8"}, {"seed", 3}};

std::string settings_complaint(const json& current) {
  return error_message<c10::ValueError>([&] { check_settings(kSaved, current, "DIR/step-00000100"); });
}

TEST(CheckSettings, NamesTheSettingAndBothValues) {
  EXPECT_NO_THROW(check_settings(kSaved, kSaved, "DIR"));
  EXPECT_EQ(settings_complaint({{"hook", "int4"}, {"seed", 3}}),
            "hook: is int4, but int8 in the checkpoint DIR/step-00000100");
  EXPECT_EQ(settings_complaint({{"hook", "int8"}, {"seed", 4}}),
            "seed: is 4, but 3 in the checkpoint DIR/step-00000100");
  EXPECT_EQ(settings_complaint({{"hook", "int8"}}),
            "seed: this training has none, but it is 3 in the checkpoint DIR/step-00000100");
  EXPECT_EQ(settings_complaint({{"hook", "int8"}, {"seed", 3}, {"width", 8}}),
            "width: is 8, but the checkpoint DIR/step-00000100 has none");
  EXPECT_EQ(settings_complaint({{"error_feedback", true}, {"hook", "int4"}, {"seed", 3}}),
            "hook: is int4, but int8 in the checkpoint DIR/step-00000100")
      << "what both have comes first";
}

TEST(CheckSettings, NamesACauseBeforeWhatFollowsFromIt) {
  const json current = {{"decay_steps", 4}, {"seed", 4}, {"steps", 20}};
  const json saved = {{"decay_steps", 2}, {"seed", 3}, {"steps", 10}};
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              check_settings(saved, current, "DIR", {"steps", "hook", "seed"});
            }),
            "steps: is 20, but 10 in the checkpoint DIR");
  EXPECT_EQ(error_message<c10::ValueError>([&] { check_settings(saved, current, "DIR", {"hook"}); }),
            "decay_steps: is 4, but 2 in the checkpoint DIR")
      << "all others alphabetically";
}

TEST(CheckSettings, ComparesValuesNotTexts) {
  EXPECT_EQ(settings_complaint({{"hook", "int8"}, {"seed", "3"}}),
            "seed: is 3, but 3 in the checkpoint DIR/step-00000100");
  EXPECT_THROW(check_settings({{"hook", "nothing"}}, json::object(), "DIR"), c10::ValueError);
}

TEST(CheckSettings, ShowsValuesOnOneLineAndNotEndless) {
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              check_settings({{"hook", "\x1b[2J\n"}}, {{"hook", "none"}}, "DIR");
            }),
            "hook: is none, but \\x1b[2J\\n in the checkpoint DIR");
  EXPECT_LE(error_message<c10::ValueError>([&] {
              check_settings({{"hook", std::string(1 << 20, 'x')}}, {{"hook", "none"}}, "DIR");
            }).size(),
            400u);
}

TEST(DescribeChanges, ListsThemAll) {
  EXPECT_EQ(describe_changes({{"a", 1}}, {{"b", "x"}}), "a (none, was 1), b (x, was none)");
  EXPECT_EQ(describe_changes(kSaved, kSaved), "");
  EXPECT_EQ(describe_changes(kSaved, {{"hook", "int4"}, {"seed", 4}}), "hook (int4, was int8), seed (4, was 3)");
}

}  // namespace
}  // namespace narrowcast::checkpoint
