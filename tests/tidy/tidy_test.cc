// Tests that each rule of the project finds an error. Each test starts with a small tree without errors and breaks
// one rule. It expects exactly one finding, with the name of the rule and the file.
#include "tidy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tutti::tidy {
namespace {

namespace fs = std::filesystem;

std::string lines(std::size_t count, const std::string& line) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += line + "\n";
  return text;
}

// A function with `count` lines, including the line with the closing brace.
std::string function_of(std::size_t count) { return "int f(int x) {\n" + lines(count - 2, "  ++x;") + "}\n"; }

class Tidy : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "tutti-tidy-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    write("include/tutti/tutti.h", "#pragma once\nint all();\n");
    write("src/base/units.h", "#pragma once\nint units();\n");
    write("src/base/units.cc", "#include \"base/units.h\"\nint units() { return 1; }\n");
    write("src/base/CMakeLists.txt", "tutti_library(base SOURCES units.cc)\n");
    write("src/plan/plan.h", "#pragma once\n#include \"base/units.h\"\n#include \"tutti/tutti.h\"\n");
    write("src/plan/plan.cc", "#include \"plan/plan.h\"\n");
    write("src/plan/CMakeLists.txt", "tutti_library(plan\n  SOURCES plan.cc PUBLIC tutti::base)\n");
    write("transports/wire.cc", "#include \"base/units.h\"\n");
    write("kernels/reduce.h", "#pragma once\n");
    write("kernels/reduce.cc", "#include \"kernels/reduce.h\"\n");
    write("tools/main.cc", "#include \"tutti/tutti.h\"\n");
    write("tools/plan/verify_command.cc", "#include \"plan/plan.h\"\n");
    write("examples/hello.cc", "#include <tutti/tutti.h>\n#include <vector>\n");
    write("CMakeLists.txt",
          "add(transports/wire.cc kernels/reduce.cc)\nadd(tools/main.cc tools/plan/verify_command.cc)\n"
          "add(${PROJECT_SOURCE_DIR}/examples/hello.cc)\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void append(const std::string& path, const std::string& text) { std::ofstream(root_ / path, std::ios::app) << text; }

  // The findings as text, one line "rule file:line" for each.
  std::string findings() const {
    std::string all;
    for (const Finding& finding : check_tree(root_)) {
      all += (all.empty() ? "" : "\n") + finding.rule + " " + finding.file + ":" + std::to_string(finding.line);
    }
    return all;
  }

  fs::path root_;
};

TEST_F(Tidy, PassesACleanTree) { EXPECT_EQ(findings(), ""); }

TEST_F(Tidy, RefusesTransportsThatKnowPlans) {
  append("transports/wire.cc", "#include \"plan/plan.h\"\n");
  EXPECT_EQ(findings(), "layer transports/wire.cc:2");
}

TEST_F(Tidy, RefusesTransportsThatKnowKernelsAndKernelsThatKnowTransports) {
  write("transports/wire.h", "#pragma once\n");
  append("transports/wire.cc", "#include \"kernels/reduce.h\"\n");
  append("kernels/reduce.cc", "#include \"transports/wire.h\"\n");
  EXPECT_EQ(findings(), "layer kernels/reduce.cc:2\nlayer transports/wire.cc:2");
}

TEST_F(Tidy, RefusesALinkToAHigherFolder) {
  write("src/base/CMakeLists.txt", "tutti_library(base\n  SOURCES units.cc\n  PUBLIC tutti::plan)\n");
  write("src/plan/CMakeLists.txt", "# nothing\ntutti_library(plan SOURCES plan.cc)\n");
  EXPECT_EQ(findings(), "target src/base/CMakeLists.txt:1\ntarget src/plan/CMakeLists.txt:2")
      << "and the other lacks one";
}

TEST_F(Tidy, RefusesLibrariesThatLinkEachOther) {
  write("src/base/CMakeLists.txt", "tutti_library(base SOURCES units.cc PUBLIC tutti::plan)\n");
  EXPECT_EQ(findings(), "target src/base/CMakeLists.txt:1\ntarget src/plan/CMakeLists.txt:1");
}

TEST_F(Tidy, RefusesAnIncludeOfALibraryThatIsNotLinked) {
  write("src/plan/CMakeLists.txt", "tutti_library(plan\n  SOURCES plan.cc)\n");
  EXPECT_EQ(findings(), "target src/plan/CMakeLists.txt:1");
}

TEST_F(Tidy, RefusesALowerFolderThatKnowsAHigherOne) {
  append("src/base/units.cc", "#include \"plan/plan.h\"\n");
  EXPECT_EQ(findings(), "layer src/base/units.cc:3");
}

TEST_F(Tidy, RefusesAPublicHeaderThatKnowsTheInside) {
  append("include/tutti/tutti.h", "#include \"kernels/reduce.h\"\n");
  EXPECT_EQ(findings(), "layer include/tutti/tutti.h:3");
}

TEST_F(Tidy, RefusesExamplesThatKnowTheInside) {
  append("examples/hello.cc", "#include \"base/units.h\"\n");
  EXPECT_EQ(findings(), "layer examples/hello.cc:3");
}

TEST_F(Tidy, LetsOnlyTheToolsPlanCommandsKnowPlans) {
  append("tools/main.cc", "#include \"plan/plan.h\"\n");
  EXPECT_EQ(findings(), "layer tools/main.cc:2");
}

TEST_F(Tidy, RefusesAFolderWithoutAPlaceInTheHouse) {
  write("src/extra/extra.cc", "int extra();\n");
  append("CMakeLists.txt", "add(src/extra/extra.cc)\n");
  EXPECT_EQ(findings(), "layer src/extra/extra.cc:1");
}

TEST_F(Tidy, RefusesAnIncludeOfNothing) {
  append("src/plan/plan.cc", "#include \"plan/plam.h\"\n");
  EXPECT_EQ(findings(), "include src/plan/plan.cc:2");
}

TEST_F(Tidy, RefusesFilesystemInTheLibraryOnly) {
  append("src/plan/plan.cc", "#include <filesystem>\n");
  append("tools/main.cc", "#include <filesystem>\n");
  EXPECT_EQ(findings(), "filesystem src/plan/plan.cc:2");
}

TEST_F(Tidy, RefusesHeadersThatIncludeEachOther) {
  write("src/plan/step.h", "#pragma once\n#include \"plan/plan.h\"\n");
  append("src/plan/plan.h", "#include \"plan/step.h\"\n");
  EXPECT_EQ(findings(), "cycle src/plan/step.h:2");
}

TEST_F(Tidy, RefusesTheLineAfterTheLastThatAFileMayHave) {
  write("kernels/reduce.h", lines(500, "int reduce();"));
  EXPECT_EQ(findings(), "");
  write("kernels/reduce.h", lines(501, "int reduce();"));
  EXPECT_EQ(findings(), "file-length kernels/reduce.h:501");
}

TEST_F(Tidy, MeasuresWidthInCharacters) {
  append("src/plan/plan.cc", "// " + lines(1, std::string(117, 'x')));
  append("src/base/units.cc", "// \xC3\xA4" + lines(1, std::string(116, 'x')));
  EXPECT_EQ(findings(), "");
  append("src/plan/plan.cc", "// " + lines(1, std::string(118, 'x')));
  EXPECT_EQ(findings(), "line-width src/plan/plan.cc:3");
}

TEST_F(Tidy, RefusesTheLineAfterTheLastThatAFunctionMayHave) {
  write("kernels/reduce.cc", "#include \"kernels/reduce.h\"\n" + function_of(70));
  EXPECT_EQ(findings(), "");
  write("kernels/reduce.cc", "#include \"kernels/reduce.h\"\n" + function_of(71));
  EXPECT_EQ(findings(), "function-length kernels/reduce.cc:2");
}

// Code that could confuse a brace matcher, placed before the function that must be found.
TEST_F(Tidy, FindsLongFunctionsAfterAnything) {
  const std::string before[] = {
      "const char* kBrace = \"{ \\\" {\"; const char kQuote = '{';",
      "int k = 1'000'000; // { not code",
      "/* { */ const char* kRaw = R\"(} \" {)\";",
      "struct S { S() : a_{1}, b_(2) {} void g() const { if (a_) { b_ = [] { return 3; }(); } } int a_; int b_; };",
      "enum class E : int { kA, kB }; constexpr int kTable[] = {1, 2, 3};",
      "#define TUTTI_OPEN {",
      "bool operator==(const int& a, int b); auto h = [](int x) { return x; };",
  };
  for (const std::string& text : before) {
    for (const std::string& function :
         {function_of(71), "struct T {\n" + function_of(71) + "};\n",
          "struct T {\n  T()\n" + lines(68, "  // filling") + "      : a_{0} {}\n int a_; };\n"}) {
      write("kernels/reduce.cc", "#include \"kernels/reduce.h\"\nnamespace n {\n" + text + "\n" + function + "}\n");
      const bool nested = function.starts_with("struct");
      EXPECT_EQ(findings(), function.find("a_{0}") != std::string::npos
                                ? ""
                                : "function-length kernels/reduce.cc:" + std::to_string(nested ? 5 : 4))
          << text << "\n"
          << function;
    }
  }
}

TEST_F(Tidy, RefusesBracesThatItCannotMatch) {
  append("src/plan/plan.cc", "int f() {\n");
  EXPECT_EQ(findings(), "function-length src/plan/plan.cc:2");
}

TEST_F(Tidy, RefusesASourceThatNothingBuilds) {
  write("src/plan/old.cc", "int old();\n");
  append("src/plan/CMakeLists.txt", "# old.cc is not named by a comment\n");
  EXPECT_EQ(findings(), "unused src/plan/old.cc:1");
}

TEST_F(Tidy, RefusesAHeaderThatNothingIncludes) {
  write("src/plan/old.h", "#pragma once\n// \n/*\n#include \"plan/old.h\"\n*/\n#include \"plan/old.h\"\n");
  EXPECT_EQ(findings(), "unused src/plan/old.h:1\ncycle src/plan/old.h:6");
}

TEST_F(Tidy, RefusesMacrosWithoutTheProjectsName) {
  append("src/plan/plan.h", "#define TUTTI_PLAN 1\n// #define PLAN 1\n");
  EXPECT_EQ(findings(), "");
  append("src/plan/plan.h", "# define PLAN 1\n");
  EXPECT_EQ(findings(), "macro src/plan/plan.h:6");
}

TEST_F(Tidy, LetsOnlyTheHeaderOfNcclsInterfaceHaveNcclsMacros) {
  write("include/nccl.h",
        "// \n#define NCCL_H_\n#define NCCL_MAJOR 2\n#define pncclResetDebugInit()\n#define OTHER 1\n");
  append("src/plan/plan.h", "#include \"nccl.h\"\n#define NCCL_MAJOR 2\n");
  EXPECT_EQ(findings(), "macro include/nccl.h:5\nmacro src/plan/plan.h:5");
}

TEST_F(Tidy, RefusesToDosWithoutAKind) {
  append("src/plan/plan.cc",
         "// TO"
         "DO(perf): faster\n");
  EXPECT_EQ(findings(), "");
  append("src/plan/plan.cc",
         "// TO"
         "DO: faster\n");
  EXPECT_EQ(findings(), "to-do src/plan/plan.cc:3");
}

TEST_F(Tidy, RefusesPathsOfOneMachineInAnyText) {
  write("docs/start.md",
        "Build in ${HOME}/wo"
        "rk/tutti.\n");
  EXPECT_EQ(findings(), "");
  write("docs/start.md",
        "Build in /wo"
        "rk/tutti.\n");
  EXPECT_EQ(findings(), "machine-path docs/start.md:1");
}

TEST_F(Tidy, LeavesBuildFoldersAlone) {
  write("build/dev/generated.cc", lines(600, "#define X"));
  write(".cache/x.cc", lines(600, "#define X"));
  EXPECT_EQ(findings(), "");
}

}  // namespace
}  // namespace tutti::tidy
