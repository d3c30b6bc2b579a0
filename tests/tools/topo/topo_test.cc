// Tests of `tutti topo` on different machines, which are simulated by the fake CUDA driver and the fake NVML
// library: exit status, text, and the JSON of docs/topo-json.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

struct ProgramResult {
  int status = -1;
  std::string text;  // standard output and standard error
};

ProgramResult topo(const std::string& environment, const std::string& arguments = "") {
  const std::string command = "env " + environment + " '" TUTTI_TOOL "' topo " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  ProgramResult program_result;
  std::array<char, 512> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) program_result.text += part.data();
  const int status = pclose(pipe);
  program_result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return program_result;
}

std::string with(const std::string& more = "") { return "LD_LIBRARY_PATH='" TUTTI_FAKE_DRIVER_DIR "' " + more; }

json topo_json(const std::string& environment) {
  const ProgramResult program_result = topo(environment, "--json");
  EXPECT_EQ(program_result.status, 0) << program_result.text;
  json document = json::parse(program_result.text, nullptr, false);
  EXPECT_FALSE(document.is_discarded()) << program_result.text;
  EXPECT_EQ(document["schema"], "tutti-topo");
  EXPECT_EQ(document["version"], 1);
  EXPECT_GE(document["host"]["cores"], 1);
  EXPECT_GE(document["host"]["cpus"].size(), document["host"]["cores"].get<std::size_t>());
  return document;
}

TEST(Topo, WithoutADriverShowsTheProcessorsAndSaysWhy) {
  const ProgramResult program_result = topo("LD_LIBRARY_PATH=");
  if (program_result.text.find("GPUs    none") == std::string::npos)
    GTEST_SKIP() << "this machine has a driver: " << program_result.text;
  EXPECT_EQ(program_result.status, 0);
  EXPECT_THAT(program_result.text, HasSubstr("CPUs    "));
  EXPECT_THAT(program_result.text, HasSubstr("no CUDA driver: libcuda.so.1"));
  const json document = topo_json("LD_LIBRARY_PATH=");
  EXPECT_TRUE(document["driver"].is_null());
  EXPECT_THAT(document["no_driver"].get<std::string>(), HasSubstr("install NVIDIA's driver"));
  EXPECT_EQ(document["gpus"], json::array());
  EXPECT_EQ(document["calls_on_device"], false);
}

TEST(Topo, WithAnOldDriverOrNoDeviceSaysWhy) {
  const ProgramResult old = topo("LD_LIBRARY_PATH='" TUTTI_OLD_DRIVER_DIR "'");
  EXPECT_EQ(old.status, 0);
  EXPECT_THAT(old.text, HasSubstr("GPUs    none: the CUDA driver 11.4 is too old"));
  const ProgramResult none = topo(with("FAKE_CUDA_DEVICES=0"));
  EXPECT_EQ(none.status, 0);
  EXPECT_THAT(none.text, HasSubstr("GPUs    none: cuInit fails: CUDA_ERROR_NO_DEVICE"));
}

TEST(Topo, ShowsAsManyGpusAndPairsAsThereAre) {
  for (const std::size_t count : {1U, 2U, 4U}) {
    const json document = topo_json(with("FAKE_CUDA_DEVICES=" + std::to_string(count)));
    EXPECT_EQ(document["driver"], "13.0");
    EXPECT_TRUE(document["no_driver"].is_null());
    ASSERT_EQ(document["gpus"].size(), count);
    EXPECT_EQ(document["paths"].size(), count * (count - 1));
    EXPECT_EQ(document["gpus"][count - 1]["number"], count - 1);
    EXPECT_EQ(document["gpus"][count - 1]["capability"], "9.0");
    EXPECT_EQ(document["gpus"][0]["uuid"], "GPU-fa000000-0000-0000-0000-000000000000");
    EXPECT_EQ(document["calls_on_device"], !document["architectures"].empty()) << document["calls_reason"];
    EXPECT_EQ(document["gpus"][0]["device_code"], document["architectures"].empty() ? "none" : "binary");
  }
  const json pair = topo_json(with())["paths"][0];
  const json expected = {{"from", 0},       {"to", 1},      {"same_gpu", false},       {"access", true},
                         {"atomics", true}, {"nvlinks", 2}, {"nvlink_version", "4.0"}, {"nvlink_switch", false}};
  EXPECT_EQ(pair, expected);
}

TEST(Topo, WithoutPeerAccessTheHostCarriesCallsOut) {
  const json document = topo_json(with("FAKE_CUDA_P2P=0"));
  EXPECT_EQ(document["paths"][1]["access"], false);
  EXPECT_EQ(document["calls_on_device"], false);
  const ProgramResult program_result = topo(with("FAKE_CUDA_P2P=0"));
  EXPECT_THAT(program_result.text, HasSubstr("none (NVLink 4.0 x 2)"));
  EXPECT_THAT(program_result.text, HasSubstr("by the host only: "));
}

TEST(Topo, WithoutNvmlSaysSoAndShowsTheRest) {
  const json document = topo_json(with("FAKE_NVML_INIT=9"));
  EXPECT_THAT(document["no_nvml"].get<std::string>(), HasSubstr("nvmlInit_v2 fails"));
  EXPECT_EQ(document["paths"][0]["nvlinks"], 0);
  EXPECT_TRUE(document["gpus"][1]["mig_enabled"].is_null());
  EXPECT_THAT(topo(with("FAKE_NVML_INIT=9")).text, HasSubstr("NVLink  unknown: nvmlInit_v2 fails"));
}

TEST(Topo, AFailureOfTheDriverIsNamedAndFails) {
  const ProgramResult program_result = topo(with("FAKE_CUDA_FAIL=cuDeviceTotalMem:2:999"));
  EXPECT_EQ(program_result.status, 1);
  EXPECT_THAT(program_result.text, HasSubstr("tutti topo: "));
  EXPECT_THAT(program_result.text, HasSubstr("cuDeviceTotalMem of GPU 1 fails: CUDA_ERROR_UNKNOWN"));
  EXPECT_THAT(program_result.text, Not(HasSubstr("CPUs")));
}

// A file that is removed at the end of the test.
class TextFile {
 public:
  explicit TextFile(const std::string& text) : path_(::testing::TempDir() + "tutti_topo_" + std::to_string(getpid())) {
    std::ofstream(path_) << text;
  }
  ~TextFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string contents_of(const std::string& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

constexpr auto kSmallMachine = R"(<system version="1">
<cpu numaid="0" arch="x86_64" vendor="GenuineIntel">
<pci busid="0000:11:00.0" class="0x030200" link_speed="32 GT/s" link_width="16"><gpu dev="0" sm="90" rank="0"/></pci>
<pci busid="0000:12:00.0" class="0x030200" link_speed="32 GT/s" link_width="16"><gpu dev="1" sm="90" rank="1"/></pci>
</cpu></system>
)";

TEST(Topo, AFileIsShownInPlaceOfThisMachine) {
  const TextFile file(kSmallMachine);
  const ProgramResult program_result = topo(with(), "--xml " + file.path());
  EXPECT_EQ(program_result.status, 0) << program_result.text;
  EXPECT_THAT(program_result.text, HasSubstr("1 CPU, 2 GPUs"));
  EXPECT_THAT(program_result.text, HasSubstr("PHB  48 GB/s"));
  EXPECT_THAT(program_result.text, HasSubstr("nothing is wrong with the file"));
  const json document = json::parse(topo(with(), "--json --xml " + file.path()).text);
  EXPECT_EQ(document["schema"], "tutti-topo");
  EXPECT_EQ(document["graph"]["parts"].size(), 3U);
  EXPECT_EQ(document["findings"], json::array());
  EXPECT_FALSE(document.contains("host"));
}

TEST(Topo, ABrokenFileFailsWithLineAndCause) {
  std::string text = kSmallMachine;
  text.replace(text.find("dev=\"1\""), 7, "dev=\"x\"");
  const TextFile file(text);
  const ProgramResult program_result = topo(with(), "--xml " + file.path());
  EXPECT_EQ(program_result.status, 1);
  EXPECT_THAT(program_result.text, HasSubstr(file.path() + ":4:"));
  EXPECT_THAT(program_result.text, HasSubstr("error: dev of <gpu> is \"x\""));
  EXPECT_THAT(program_result.text, Not(HasSubstr("GB/s")));
  const ProgramResult missing = topo(with(), "--xml " + file.path() + ".not");
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.text, HasSubstr("cannot open"));
}

TEST(Topo, AShapeIsWrittenDrawnAndReadAgain) {
  const TextFile xml("");
  const std::string svg = xml.path() + ".svg";
  const ProgramResult program_result =
      topo(with(), "--shape dgx-h100 --nodes 4 --write-xml " + xml.path() + " --svg " + svg);
  EXPECT_EQ(program_result.status, 0) << program_result.text;
  EXPECT_THAT(program_result.text, HasSubstr("4 machines, 32 ranks"));
  EXPECT_THAT(program_result.text, HasSubstr("NVL  371 GB/s"));
  EXPECT_THAT(contents_of(svg), HasSubstr("<svg "));
  std::remove(svg.c_str());
  const ProgramResult again = topo(with(), "--xml " + xml.path());
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.text, HasSubstr("dgx-h100: 2 CPUs, 8 PCI switches, 8 GPUs, 1 NVSwitch, 8 NICs"));
  EXPECT_EQ(topo(with(), "--shape dgx-z").status, 2);
  EXPECT_THAT(topo(with(), "--shape dgx-z").text, HasSubstr("is not one of dgx-1v, "));
  EXPECT_EQ(topo(with(), "--shape dgx-h100 --xml " + xml.path()).status, 2);
  EXPECT_EQ(topo(with(), "--nodes 4").status, 2);
}

TEST(Topo, ThisMachineIsAGraphToo) {
  const json document = topo_json(with());
  EXPECT_GE(document["host"]["numa_nodes"].size(), 1U);
  std::size_t gpus = 0;
  for (const json& part : document["graph"]["parts"]) gpus += part["kind"] == "gpu" ? 1 : 0;
  EXPECT_EQ(gpus, 2U);  // the simulated GPUs
  EXPECT_EQ(document["machines"], 1);
  EXPECT_THAT(topo(with()).text, HasSubstr("this machine: "));
}

TEST(Topo, ItsCommandLineAndItsOutputAreChecked) {
  EXPECT_EQ(topo(with(), "--jsn").status, 2);
  EXPECT_THAT(topo(with(), "--jsn").text, HasSubstr("did you mean --json?"));
  const ProgramResult full = topo(with(), ">/dev/full 2>/dev/null #");
  EXPECT_EQ(full.status, 1);
}

}  // namespace
