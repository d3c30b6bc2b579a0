// Tests of `tutti train plot`: how it reads logs, how it reports bad logs, and what it draws.
#include "train/plot/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace tutti::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::Not;
using testing::SizeIs;

constexpr const char* kRun =
    R"({"record":"run","model":"cnn","parameters":1199882,"strategy":"ddp","ranks":2,"data":2,"tensor":1,"pipeline":1,)"
    R"("batch":64,"seed":1,"optimizer":"sgd","lr":0.05,"threads":1,"precision":"fp32","time":"2026-11-23T14:00:00Z"})"
    "\n";
constexpr const char* kStep =
    R"({"record":"step","step":1,"epoch":1,"loss":2.31,"lr":0.05,"samples":64,"load_s":0.0001,"compute_s":0.011,)"
    R"("exposed_s":0.001,"step_s":0.0125,"skipped":false,"grad_norm":1.5})"
    "\n";
constexpr const char* kEpoch = R"({"record":"epoch","epoch":1,"step":938,"test_loss":0.4,"test_accuracy":0.88})"
                               "\n";
constexpr const char* kResult =
    R"({"record":"result","steps":938,"epochs":1,"loss":0.35,"test_loss":0.4,"test_accuracy":0.88,"seconds":12.5,)"
    R"("samples_per_s":5000.1,"peak_bytes":12345})"
    "\n";

std::string fault(const std::string& text) {
  const Result<RunLog> log = parse_log("runs/one.jsonl", text);
  EXPECT_FALSE(log.ok()) << text;
  if (log.ok()) return {};
  EXPECT_EQ(log.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(log.error().scope, ErrorScope::kCall);
  return log.error().message;
}

// A run whose loss starts at 2 and falls. The parts of a step take 1, 6, 2 and 1 ms. The first step takes a second.
RunLog run_of(std::uint32_t ranks, std::size_t steps, const std::string& strategy = "ddp") {
  RunLog log;
  log.name = strategy + std::to_string(ranks);
  log.model = "cnn";
  log.strategy = strategy;
  log.precision = "fp32";
  log.ranks = ranks;
  for (std::size_t i = 1; i <= steps; ++i) {
    log.steps.push_back({.step = i, .loss = 1 + 1 / static_cast<double>(i)});
    RunLog::Step& step = log.steps.back();
    step.load_s = 0.001;
    step.compute_s = i == 1 ? 0.9 : 0.006;
    step.exposed_s = 0.002;
    step.step_s = i == 1 ? 1.0 : 0.010;
  }
  return log;
}

// Returns the text of one panel, or "" if the panel is left out.
std::string panel(const std::string& svg, const std::string& name) {
  const std::size_t begin = svg.find("<g id=\"" + name + "\">");
  if (begin == std::string::npos) return {};
  return svg.substr(begin, svg.find("</g>", begin) - begin);
}

// Returns the text between each occurrence of `begin` and the next quote.
std::vector<std::string> quoted_after(const std::string& text, const std::string& begin) {
  std::vector<std::string> found;
  for (std::size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const std::size_t start = at + begin.size();
    found.push_back(text.substr(start, text.find('"', start) - start));
  }
  return found;
}

// Returns the path data of the curves.
std::vector<std::string> paths(const std::string& text) { return quoted_after(text, "<path d=\""); }

// The first group of each match of `pattern`. Path data is removed first, because <regex> recurses per character.
std::vector<std::string> all_of(std::string text, const std::string& pattern) {
  const std::string way = " d=\"";
  for (std::size_t at = text.find(way); at != std::string::npos; at = text.find(way, at)) {
    text.erase(at, text.find('"', at + way.size()) + 1 - at);
  }
  std::vector<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator i(text.begin(), text.end(), regex); i != std::sregex_iterator(); ++i) {
    found.push_back(i->str(1));
  }
  return found;
}

std::vector<double> numbers(const std::string& text, const std::string& pattern) {
  std::vector<double> values;
  for (const std::string& number : all_of(text, pattern)) values.push_back(std::stod(number));
  return values;
}

std::size_t count_of(const std::string& text, char letter) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), letter));
}

// The bars are lines that are 14 pixels thick.
std::vector<double> bar_lengths(const std::string& time) {
  const std::string rest = "[^>]* stroke-width=\"14.0\"";
  const auto begins = numbers(time, "<line x1=\"([0-9.]+)\"" + rest);
  const auto ends = numbers(time, "<line [^>]* x2=\"([0-9.]+)\"" + rest);
  std::vector<double> lengths;
  for (std::size_t i = 0; i < begins.size(); ++i) lengths.push_back(ends.at(i) - begins[i]);
  return lengths;
}

TEST(PlotLog, KeepsWhatTheRecordsSay) {
  const Result<RunLog> log = parse_log("some/where/ddp 2.jsonl", std::string(kRun) + kStep + "\r\n" + kEpoch + kResult);
  ASSERT_TRUE(log.ok()) << log.error().message;
  EXPECT_EQ(log->name, "ddp 2");
  EXPECT_EQ(log->model, "cnn");
  EXPECT_EQ(log->strategy, "ddp");
  EXPECT_EQ(log->optimizer, "sgd");
  EXPECT_EQ(log->precision, "fp32");
  EXPECT_EQ(log->parameters, 1'199'882U);
  EXPECT_EQ(log->ranks, 2U);
  EXPECT_EQ(log->tensor, 1U);
  EXPECT_EQ(log->pipeline, 1U);
  EXPECT_EQ(log->batch, 64U);
  EXPECT_EQ(log->threads, 1U);
  EXPECT_EQ(log->seed, 1U);
  EXPECT_EQ(log->lr, 0.05);
  ASSERT_THAT(log->steps, SizeIs(1));
  EXPECT_EQ(log->steps[0].step, 1U);
  EXPECT_EQ(log->steps[0].loss, 2.31);
  EXPECT_EQ(log->steps[0].load_s, 0.0001);
  EXPECT_EQ(log->steps[0].compute_s, 0.011);
  EXPECT_EQ(log->steps[0].exposed_s, 0.001);
  EXPECT_EQ(log->steps[0].step_s, 0.0125);
  ASSERT_THAT(log->epochs, SizeIs(1));
  EXPECT_EQ(log->epochs[0].step, 938U);
  EXPECT_EQ(log->epochs[0].test_accuracy, 0.88);
  EXPECT_EQ(log->samples_per_s, 5000.1);
}

TEST(PlotLog, PassesOverWhatItDoesNotKnowAndTakesNullForNoNumber) {
  const Result<RunLog> log = parse_log(
      "a", std::string(R"({"record":"run","ranks":1,"colour":["blue",{}],"model":null})") + "\n" +
               R"({"record":"weather","step":-3})" + "\n" + R"({"record":"step","step":7,"loss":null,"load_s":null})" +
               "\n" + R"({"record":"step","step":8,"loss":1e300})" + "\n" +
               R"({"record":"epoch","step":8,"test_accuracy":null})" + "\n");
  ASSERT_TRUE(log.ok()) << log.error().message;
  EXPECT_EQ(log->model, "");
  ASSERT_THAT(log->steps, SizeIs(2));
  EXPECT_TRUE(std::isnan(log->steps[0].loss));
  EXPECT_TRUE(std::isnan(log->steps[0].load_s));
  EXPECT_TRUE(std::isnan(log->steps[0].step_s));
  EXPECT_TRUE(std::isnan(log->steps[1].loss)) << "the loss diverged";
  ASSERT_THAT(log->epochs, SizeIs(1));
  EXPECT_TRUE(std::isnan(log->epochs[0].test_accuracy));
  EXPECT_TRUE(std::isnan(log->samples_per_s));
}

TEST(PlotLog, ALastLineThatIsCutOffIsPassedOver) {
  const std::string step(kStep);
  // the closing brace and the end of the line are missing
  for (std::size_t bytes = 0; bytes + 2 < step.size(); ++bytes) {
    const Result<RunLog> log = parse_log("a", kRun + step + step.substr(0, bytes));
    ASSERT_TRUE(log.ok()) << log.error().message;
    ASSERT_THAT(log->steps, SizeIs(1));
  }
  const Result<RunLog> whole = parse_log("a", kRun + step + step.substr(0, step.size() - 1));
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_THAT(whole->steps, SizeIs(2)) << "only the end of the line is missing";
}

TEST(PlotLog, ABadLineIsNamed) {
  const std::string cut = std::string(kStep).substr(0, 30);
  EXPECT_THAT(fault(kRun + cut + "\n" + kStep), AllOf(HasSubstr("runs/one.jsonl, line 2: "), HasSubstr("is not a")));
  EXPECT_THAT(fault(kRun + cut + "\n"), HasSubstr("line 2: ")) << "the line has an end, so it was not cut off";
  EXPECT_THAT(fault(std::string(kRun) + kStep + "\n\nloss 2.3"), HasSubstr("line 5: \"loss 2.3\" is not a JSON"));
  EXPECT_THAT(fault("\x7f"
                    "ELF\x02\x01"),
              AllOf(HasSubstr("line 1: \"?ELF??\""), HasSubstr("--json FILE")));
  EXPECT_THAT(fault(std::string(kRun) + "[1, 2]\n"), HasSubstr("line 2: \"[1, 2]\" is not a JSON object"));
  EXPECT_THAT(fault(std::string(kRun) + "{}\n"), HasSubstr("line 2: there is no \"record\" field"));
  EXPECT_THAT(fault(std::string(kRun) + "{\"record\":3}\n"), HasSubstr("line 2: there is no \"record\" field"));
  EXPECT_TRUE(parse_log("resumed", std::string(kRun) + kStep + kRun).ok()) << "a run that was resumed";
}

TEST(PlotLog, ABadFieldIsNamed) {
  const auto second = [](const std::string& record) { return fault(std::string(kRun) + record + "\n"); };
  EXPECT_THAT(fault("{\"record\":\"run\"}\n"), HasSubstr("line 1: \"ranks\" is missing: fix or remove the line"));
  for (const char* ranks : {"0", "-1", "1.5", "\"2\"", "1000001", "[]"}) {
    EXPECT_THAT(fault(std::string("{\"record\":\"run\",\"ranks\":") + ranks + "}\n"),
                HasSubstr("line 1: \"ranks\" should be a whole number of 1 to 1000000"));
  }
  EXPECT_THAT(fault("{\"record\":\"run\",\"ranks\":1,\"model\":5}\n"), HasSubstr("\"model\" should be a string"));
  EXPECT_THAT(fault("{\"record\":\"run\",\"ranks\":1,\"seed\":-5}\n"), HasSubstr("\"seed\" should be a whole number"));
  EXPECT_THAT(second(R"({"record":"step","loss":1})"), HasSubstr("line 2: \"step\" is missing"));
  EXPECT_THAT(second(R"({"record":"step","step":1,"loss":"low"})"), HasSubstr("\"loss\" should be a number or null"));
  EXPECT_THAT(second(R"({"record":"step","step":1,"load_s":-1})"), HasSubstr("\"load_s\" should be a number of 0 to"));
  EXPECT_THAT(second(R"({"record":"epoch","step":1,"test_accuracy":88})"),
              HasSubstr("\"test_accuracy\" should be a number of 0 to 1"));
  EXPECT_THAT(second(R"({"record":"result","samples_per_s":true})"), HasSubstr("\"samples_per_s\" should be a number"));
}

TEST(PlotLog, TextWithoutARunIsRefused) {
  EXPECT_THAT(fault(""), HasSubstr("runs/one.jsonl is empty"));
  EXPECT_THAT(fault("\n \n"), HasSubstr("no \"run\" record"));
  EXPECT_THAT(fault(kStep), AllOf(HasSubstr("no \"run\" record"), HasSubstr("--json FILE")));
  EXPECT_THAT(fault(std::string(kRun).substr(0, 40)), HasSubstr("no \"run\" record"));
}

TEST(Plot, EachLogHasALineOfItsOwnColour) {
  const std::string svg = draw({run_of(1, 10), run_of(2, 12), run_of(4, 9)});
  const std::string loss = panel(svg, "loss");
  const auto lines = paths(loss);
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(count_of(lines[0], 'M') + count_of(lines[0], 'L'), 10U);
  EXPECT_EQ(count_of(lines[1], 'M') + count_of(lines[1], 'L'), 12U);
  auto colours = all_of(loss, "<path [^>]*stroke=\"(#[0-9a-f]{6})\"");
  std::sort(colours.begin(), colours.end());
  EXPECT_EQ(std::unique(colours.begin(), colours.end()), colours.end());
  for (const char* label : {">1 rank<", ">2 ranks<", ">4 ranks<"}) EXPECT_THAT(loss, HasSubstr(label));
  EXPECT_THAT(svg, HasSubstr(">cnn, ddp, fp32, seed 0<")) << "the settings that all runs have in common";
}

TEST(Plot, ALineFallsAsItsLossDoes) {
  const std::string loss = panel(draw({run_of(1, 10)}), "loss");
  const auto x = numbers(paths(loss).at(0), "[ML]([0-9.]+) [0-9.]+");
  const auto y = numbers(paths(loss).at(0), "[ML][0-9.]+ ([0-9.]+)");
  ASSERT_THAT(y, SizeIs(10));
  for (std::size_t i = 1; i < y.size(); ++i) {
    EXPECT_GT(x[i], x[i - 1]);
    EXPECT_GT(y[i], y[i - 1]) << "pixels are counted from the top";
  }
}

TEST(Plot, ManyStepsAreSmoothedBeforeTheRawLine) {
  RunLog log = run_of(1, 100'000);
  for (std::size_t i = 0; i < log.steps.size(); ++i) log.steps[i].loss += i % 2 == 0 ? 0.5 : -0.5;
  const std::string svg = draw({log});
  const auto lines = paths(panel(svg, "loss"));
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(all_of(panel(svg, "loss"), "<path [^>]*opacity=\"([0-9.]+)\""), ElementsAre("0.25", "1"));
  const auto spread = [](const std::string& line) {  // of the second half, which should be level
    const auto y = numbers(line, "[ML][0-9.]+ ([0-9.]+)");
    const auto [low, high] = std::minmax_element(y.begin() + static_cast<std::ptrdiff_t>(y.size() / 2), y.end());
    return *high - *low;
  };
  EXPECT_GT(spread(lines[0]), 50);
  EXPECT_LT(spread(lines[1]), 2);
  EXPECT_LT(svg.size(), 40'000U) << "a hundred thousand steps are drawn as a few hundred points";
}

TEST(Plot, ALossThatIsNoNumberIsAGap) {
  RunLog log = run_of(1, 10);
  ASSERT_EQ(count_of(paths(panel(draw({log}), "loss")).at(0), 'M'), 1U);
  log.steps[4].loss = kNoValue;
  const std::string loss = panel(draw({log}), "loss");
  EXPECT_EQ(count_of(paths(loss).at(0), 'M'), 2U);
  EXPECT_EQ(count_of(paths(loss).at(0), 'L'), 7U);
  EXPECT_THAT(loss, HasSubstr("(1 step without a loss)"));
  log.steps[2].loss = kNoValue;  // the fourth step is isolated now, and is drawn as a dash
  EXPECT_EQ(count_of(paths(panel(draw({log}), "loss")).at(0), 'M'), 3U);
  RunLog longer = run_of(1, 300);
  longer.steps[150].loss = kNoValue;
  for (const std::string& line : paths(panel(draw({longer}), "loss"))) EXPECT_EQ(count_of(line, 'M'), 2U);
  for (RunLog::Step& step : log.steps) step.loss = kNoValue;
  const std::string none = draw({log});
  EXPECT_EQ(panel(none, "loss"), "");
  EXPECT_THAT(none, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(Plot, LossesOverManyPowersOfTenAreLogarithmic) {
  RunLog log = run_of(1, 5);
  double loss = 1;
  for (RunLog::Step& step : log.steps) step.loss = loss /= 10;
  const std::string svg = panel(draw({log}), "loss");
  EXPECT_THAT(svg, HasSubstr("Loss (logarithmic)"));
  const auto y = numbers(paths(svg).at(0), "[ML][0-9.]+ ([0-9.]+)");
  ASSERT_THAT(y, SizeIs(5));
  for (std::size_t i = 2; i < y.size(); ++i) EXPECT_NEAR(y[i] - y[i - 1], y[1] - y[0], 0.2);
  log.steps[3].loss = -1;
  EXPECT_THAT(draw({log}), Not(HasSubstr("logarithmic")));
}

TEST(Plot, AccuraciesAreDotsOnAnAxisOfTheirOwn) {
  RunLog log = run_of(1, 10);
  EXPECT_THAT(panel(draw({log}), "loss"), AllOf(Not(HasSubstr("<circle")), Not(HasSubstr("%"))));
  log.epochs = {{.step = 5, .test_accuracy = 0.5}, {.step = 10, .test_accuracy = 0.9}, {.step = 10}};
  const std::string loss = panel(draw({log}), "loss");
  const auto y = numbers(loss, "<circle cx=\"[0-9.]+\" cy=\"([0-9.]+)\"");
  ASSERT_THAT(y, SizeIs(2)) << "one epoch has no accuracy and no dot";
  EXPECT_LT(y[1], y[0]);
  const auto at = [&](const char* tick) {
    return numbers(loss, std::string("<text x=\"[0-9.]+\" y=\"([0-9.]+)\"[^>]*>") + tick + "<").at(0) - 4;
  };
  EXPECT_NEAR(at("50%"), y[0], 0.15);
  EXPECT_NEAR(at("90%"), y[1], 0.15);
}

TEST(Plot, ThereIsScalingOnlyWhereRanksDiffer) {
  RunLog one = run_of(1, 3), two = run_of(2, 3), four = run_of(4, 3), other = run_of(4, 3, "zero");
  EXPECT_EQ(panel(draw({one, two}), "scaling"), "") << "no run was completed";
  one.samples_per_s = 100;
  EXPECT_EQ(panel(draw({one, two}), "scaling"), "") << "only one run was completed";
  EXPECT_EQ(panel(draw({one, one}), "scaling"), "");
  two.samples_per_s = 180;
  four.samples_per_s = 240;
  other.samples_per_s = 320;
  RunLog again = four;
  again.samples_per_s = 280;
  const std::string scaling = panel(draw({four, two, one, other, again}), "scaling");
  ASSERT_THAT(paths(scaling), SizeIs(1)) << "a strategy with one count of ranks is a dot";
  EXPECT_EQ(count_of(paths(scaling)[0], 'L'), 2U);
  EXPECT_THAT(all_of(scaling, "<(circle)"), SizeIs(4)) << "runs of the same kind are one dot";
  for (const char* label : {">ddp<", ">zero<", ">ideal, from 1 rank<"}) EXPECT_THAT(scaling, HasSubstr(label));
  const auto y = numbers(paths(scaling)[0], "[ML][0-9.]+ ([0-9.]+)");
  const auto ideal = numbers(scaling, "<line [^>]*y1=\"([0-9.]+)\"[^>]*stroke-dasharray");
  const auto ideal_end = numbers(scaling, "<line [^>]*y2=\"([0-9.]+)\"[^>]*stroke-dasharray");
  ASSERT_THAT(y, SizeIs(3));
  ASSERT_THAT(ideal, SizeIs(2)) << "the line, and its sample in the legend";
  EXPECT_NEAR(ideal[0], y[0], 0.15);
  const double pixels_of_100 = (ideal[0] - ideal_end[0]) / 3;
  EXPECT_NEAR(y[0] - y[1], 0.8 * pixels_of_100, 0.3);
  EXPECT_NEAR(y[0] - y[2], 1.6 * pixels_of_100, 0.3) << "the mean of 240 and 280";
}

TEST(Plot, TheIdealIsThatOfTheFastestRunWithTheFewestRanks) {
  std::vector<RunLog> logs = {run_of(2, 0), run_of(2, 0, "zero"), run_of(4, 0), run_of(2, 0, "tp")};
  const double rates[] = {100, 150, 170, 120};
  for (std::size_t i = 0; i < logs.size(); ++i) logs[i].samples_per_s = rates[i];
  const std::string scaling = panel(draw(logs), "scaling");
  const auto dots = numbers(scaling, "<circle cx=\"[0-9.]+\" cy=\"([0-9.]+)\"");
  ASSERT_THAT(dots, SizeIs(4));  // ddp with 2 and with 4 ranks, zero, tp
  EXPECT_NEAR(numbers(scaling, "<line [^>]*y1=\"([0-9.]+)\"[^>]*stroke-dasharray").at(0), dots[2], 0.15);
  const double pixels_of_50 = dots[0] - dots[2];
  EXPECT_NEAR(numbers(scaling, "<line [^>]*y2=\"([0-9.]+)\"[^>]*stroke-dasharray").at(0), dots[2] - 3 * pixels_of_50,
              0.8);
  EXPECT_THAT(scaling, HasSubstr(">ideal, from 2 ranks<"));
}

TEST(Plot, EachLogHasABarOfItsMeanStep) {
  RunLog slow = run_of(2, 5);
  for (RunLog::Step& step : slow.steps) step.step_s += 0.010;
  const RunLog warming = run_of(4, 1);
  const std::string time = panel(draw({run_of(1, 5), slow, warming}), "time");
  const auto lengths = bar_lengths(time);
  ASSERT_THAT(lengths, SizeIs(8)) << "four parts each; the run of one step has no bar";
  const double ms = lengths[0];
  for (const auto& [part, expected] : {std::pair{1, 6.0}, {2, 2.0}, {3, 1.0}, {4, 1.0}, {7, 11.0}}) {
    EXPECT_NEAR(lengths[static_cast<std::size_t>(part)], expected * ms, 0.5) << "part " << part;
  }
  EXPECT_THAT(time,
              AllOf(HasSubstr(">10 ms<"), HasSubstr(">20 ms<"), HasSubstr(">2 ranks<"), Not(HasSubstr("4 rank"))));
  EXPECT_EQ(panel(draw({warming}), "time"), "");
}

TEST(Plot, LabelsAreNamesWhereRunsAreTheSameAndNeverTheSameTwice) {
  RunLog one = run_of(1, 3), two = one, three = one;
  one.name = two.name = "a";
  three.name = "b";
  const std::string loss = panel(draw({one, two, three}), "loss");
  for (const char* label : {">1. a<", ">2. a<", ">b<"}) EXPECT_THAT(loss, HasSubstr(label));
  three.ranks = two.ranks = 2;
  const std::string some = panel(draw({one, two, three}), "loss");
  for (const char* label : {">1 rank<", ">a: 2 ranks<", ">b: 2 ranks<"}) EXPECT_THAT(some, HasSubstr(label));
}

TEST(Plot, TextsAreEscaped) {
  RunLog one = run_of(1, 3), two = one;
  one.strategy = "<b>&\"quick\"";
  two.model = "<script>";
  one.samples_per_s = two.samples_per_s = 5;
  two.ranks = 3;
  const std::string svg = draw({one, two});
  EXPECT_THAT(svg, AllOf(HasSubstr("&lt;b&gt;&amp;&quot;quick&quot;"), HasSubstr("&lt;script&gt;")));
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("<b>")), Not(HasSubstr("<script>"))));
  const Result<RunLog> named = parse_log("\xff<i>.jsonl", kRun);
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->name, "?<i>") << "the name was not valid UTF-8";
}

// Every coordinate must be inside the drawing, also for logs with extreme values.
TEST(Plot, NothingIsOutsideTheDrawing) {
  std::vector<RunLog> logs;
  for (std::uint32_t i = 0; i < kMostLogs; ++i) {
    RunLog log =
        run_of(1 + i * i, 1 + 7 * i, "a strategy whose name is far too long for a legend, number " + std::to_string(i));
    log.samples_per_s = 1000.0 * i;
    log.epochs = {{.step = i, .test_accuracy = 1}, {.step = 3 * i, .test_accuracy = 0}};
    for (RunLog::Step& step : log.steps) step.step += std::uint64_t{i} << 20;
    log.steps.back().loss = i == 0 ? 1e30 : i == 1 ? -1e30 : i == 2 ? 1e-300 : 0;
    logs.push_back(log);
  }
  RunLog level = run_of(1, 300);
  for (RunLog::Step& step : level.steps) step.loss = 0.25;
  RunLog late = run_of(1, 2);
  for (RunLog::Step& step : late.steps) step.step = 1'000'000'000'000'000;
  for (const std::vector<RunLog>& some : {logs, {run_of(1, 1)}, {level}, {late}, {logs[0], logs[2]}, {RunLog()}, {}}) {
    const std::string svg = draw(some);
    const double width = numbers(svg, "<svg [^>]* width=\"([0-9]+)\"").at(0);
    const double height = numbers(svg, "<svg [^>]* height=\"([0-9]+)\"").at(0);
    EXPECT_EQ(width, 900);
    EXPECT_THAT(numbers(svg, " (?:x|x1|x2|cx)=\"([^\"]+)\""), Each(AllOf(Ge(0), Le(width))));
    EXPECT_THAT(numbers(svg, " (?:y|y1|y2|cy)=\"([^\"]+)\""), Each(AllOf(Ge(0), Le(height))));
    for (const std::string& path : paths(svg)) {
      EXPECT_THAT(numbers(path, "[ML]([^ ]+) "), Each(AllOf(Ge(0), Le(width))));
      EXPECT_THAT(numbers(path, "[ML][^ ]+ ([^ ]+)"), Each(AllOf(Ge(0), Le(height))));
    }
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  }
}

TEST(Plot, TicksAreRoundNumbers) {
  RunLog log = run_of(1, 1876);
  log.samples_per_s = 5100;
  RunLog three = run_of(3, 10);
  three.samples_per_s = 12'000;
  const std::string svg = draw({log, three});
  const auto ticks = [&](const std::string& name) {  // of both axes, which use the small font
    return all_of(panel(svg, name), "font-size=\"11\"[^>]*>([^<]*[0-9]k?)<");
  };
  EXPECT_THAT(ticks("loss"), ElementsAre("0", "500", "1000", "1500", "1", "1.2", "1.4", "1.6", "1.8", "2"));
  EXPECT_THAT(ticks("scaling"), ElementsAre("0", "1", "2", "3", "0", "5000", "10k", "15k", "20k"));
  EXPECT_THAT(ticks("time"), ElementsAre("0", "2", "4", "6", "8", "10"));
}

// Files that only this test uses.
class PlotFiles : public testing::Test {
 protected:
  PlotFiles() : folder_(testing::TempDir() + "tutti_plot_test." + std::to_string(getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~PlotFiles() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string fault(const std::vector<std::string>& logs) const {
    const Status status = plot(logs, path("no.svg"));
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(std::filesystem::exists(path("no.svg")));
    return status.ok() ? "" : status.error().message;
  }

 private:
  std::string folder_;
};

TEST_F(PlotFiles, LogsBecomeADrawing) {
  const std::string one = write("one.jsonl", std::string(kRun) + kStep + kStep);
  const std::string two = write("two.jsonl", std::string(kRun) + kStep + kStep + kResult);
  const Status status = plot({one, two}, path("out.svg"));
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(read(path("out.svg")), draw({*parse_log(one, read(one)), *parse_log(two, read(two))}));
  EXPECT_THAT(read(path("out.svg")), AllOf(HasSubstr(">one<"), HasSubstr(">two<")));
}

TEST_F(PlotFiles, ABadFileIsNamedAndNothingIsWritten) {
  const std::string good = write("good.jsonl", std::string(kRun) + kStep);
  EXPECT_THAT(fault({good, path("none.jsonl")}), AllOf(HasSubstr("none.jsonl"), HasSubstr("No such file")));
  EXPECT_THAT(fault({good, write("empty.jsonl", "")}), HasSubstr("empty.jsonl is empty"));
  EXPECT_THAT(fault({good, write("bad.jsonl", std::string(kRun) + "loss\n")}), HasSubstr("bad.jsonl, line 2: "));
  EXPECT_THAT(fault({write("bare.jsonl", kRun)}), HasSubstr("let a run do two steps first"));
  EXPECT_THAT(fault({}), HasSubstr("name 1 to 64"));
  EXPECT_THAT(fault(std::vector<std::string>(kMostLogs + 1, good)), HasSubstr("there are 65 logs"));
  write("big.jsonl", kRun);
  std::filesystem::resize_file(path("big.jsonl"), kMostLogBytes + 1);  // a sparse file
  EXPECT_THAT(fault({path("big.jsonl")}), HasSubstr("big.jsonl is bigger than 256 MB"));
}

TEST_F(PlotFiles, ALogIsNotReplacedByTheDrawing) {
  const std::string log = write("log.jsonl", std::string(kRun) + kStep);
  const Status status = plot({log}, path("./log.jsonl"));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("would replace the log"));
  EXPECT_EQ(read(log), std::string(kRun) + kStep);
}

}  // namespace
}  // namespace tutti::train
