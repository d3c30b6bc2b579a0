// Tests of the discovery of this machine's topology, with made-up sysfs folders and made-up processors.
#include "topology/discover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "topology/speeds.h"
#include "topology/sysfs.h"
#include "topology/xml/xml.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A folder with the structure of sysfs, which is removed at the end of the test.
class FakeSysfs {
 public:
  FakeSysfs() : root_(fs::temp_directory_path() / ("tutti_sysfs_" + std::to_string(getpid()))) {
    fs::create_directories(root_ / "sys/bus/pci/devices");
  }
  ~FakeSysfs() {
    std::error_code none;
    fs::remove_all(root_, none);
  }
  const fs::path& root() const { return root_; }

  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << '\n';
  }

  // Adds a device at the end of a chain of bus ids that starts at a root port.
  void add_pci(const std::vector<std::string>& chain, const std::string& device_class, const std::string& vendor,
               const std::string& speed, int width, int numa) {
    fs::path real = "sys/devices/pci0000:00";
    for (const std::string& id : chain) {
      real /= id;
      fs::create_directories(root_ / real);
      const fs::path link = root_ / "sys/bus/pci/devices" / id;
      if (!fs::exists(fs::symlink_status(link))) fs::create_directory_symlink(root_ / real, link);
    }
    write(real / "class", device_class);
    write(real / "vendor", vendor);
    write(real / "max_link_speed", speed);
    write(real / "max_link_width", std::to_string(width));
    write(real / "numa_node", std::to_string(numa));
    real_[chain.back()] = real;
  }

  void add_rdma(const std::string& name, const std::string& bus_id, const std::string& port, const std::string& state,
                const std::string& rate) {
    const fs::path folder = fs::path("sys/class/infiniband") / name;
    write(folder / "ports" / port / "state", state);
    write(folder / "ports" / port / "rate", rate);
    write(folder / "node_guid", "9803:9b03:00ae:6d94");
    if (!fs::exists(root_ / folder / "device")) {
      fs::create_directory_symlink(root_ / real_[bus_id], root_ / folder / "device");
    }
  }

  void add_interface(const std::string& name, const std::string& bus_id, const std::string& state,
                     const std::string& speed) {
    const fs::path folder = fs::path("sys/class/net") / name;
    write(folder / "operstate", state);
    write(folder / "speed", speed);
    if (!bus_id.empty()) fs::create_directory_symlink(root_ / real_[bus_id], root_ / folder / "device");
  }

 private:
  fs::path root_;
  std::map<std::string, fs::path> real_;
};

// Two PCI switches, one at each socket, with two GPUs each. The first also has a NIC with one port, the second a NIC
// with two ports.
void fill(FakeSysfs& sysfs) {
  const std::string speed = "32.0 GT/s PCIe";
  for (int socket = 0; socket < 2; ++socket) {
    const std::string base = socket == 0 ? "1" : "9";
    const std::vector<std::string> up{"0000:0" + base + ":00.0", "0000:" + base + "0:00.0"};
    sysfs.add_pci({up[0]}, "0x060400", "0x8086", speed, 16, socket);
    sysfs.add_pci(up, "0x060400", "0x1000", speed, 16, socket);
    for (int i = 1; i <= 3; ++i) {
      const std::string number = std::to_string(i);
      const std::string port = "0000:" + base + "0:0" + number + ".0";
      sysfs.add_pci({up[0], up[1], port}, "0x060400", "0x1000", speed, 16, socket);
      const std::string device = "0000:" + base + number + ":00.0";
      const bool nic = i == 3;
      sysfs.add_pci({up[0], up[1], port, device}, nic ? "0x020700" : "0x030200", nic ? "0x15b3" : "0x10de",
                    nic ? "16.0 GT/s PCIe" : speed, 16, socket);
    }
  }
  sysfs.add_rdma("mlx5_0", "0000:13:00.0", "1", "4: ACTIVE", "400 Gb/sec (4X NDR)");
  sysfs.add_rdma("mlx5_1", "0000:93:00.0", "1", "4: ACTIVE", "100 Gb/sec (4X EDR)");
  sysfs.add_rdma("mlx5_1", "0000:93:00.0", "2", "4: ACTIVE", "100 Gb/sec (4X EDR)");
  sysfs.add_interface("lo", "", "unknown", "0");
}

GpuTopology four_gpus() {
  GpuTopology gpus;
  gpus.driver_version = 13'000;
  for (const std::string bus : {"0000:11:00.0", "0000:12:00.0", "0000:91:00.0", "0000:92:00.0"}) {
    Gpu gpu;
    gpu.pci_id = bus;
    gpu.capability_major = 9;
    gpus.gpus.push_back(gpu);
  }
  gpus.paths.resize(16);
  for (std::size_t i = 0; i < 16; ++i) {
    if (i / 4 != i % 4) gpus.paths[i] = {false, true, true, {18, 40, true}};
  }
  return gpus;
}

std::uint32_t index_of(const Graph& graph, std::string_view name) {
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].name == name) return i;
  }
  ADD_FAILURE() << "no part " << name;
  return 0;
}

constexpr auto kTwoSockets = "pack:2 numa:1 l3:1 core:4 pu:1";

TEST(Discover, FindsEveryPartAndItsPlace) {
  FakeSysfs sysfs;
  fill(sysfs);
  const Result<Discovery> found = discover({.root = sysfs.root(), .synthetic = kTwoSockets}, four_gpus());
  ASSERT_TRUE(found) << to_string(found.error());
  const Graph& graph = found->graph;
  EXPECT_EQ(nodes_of(graph, NodeKind::kCpu).size(), 2U);
  EXPECT_EQ(nodes_of(graph, NodeKind::kGpu).size(), 4U);
  EXPECT_EQ(nodes_of(graph, NodeKind::kNic).size(), 3U);
  EXPECT_EQ(nodes_of(graph, NodeKind::kPci).size(), 3U);  // a switch for each socket, and the NIC with two ports
  EXPECT_EQ(nodes_of(graph, NodeKind::kNvSwitch).size(), 1U);
  EXPECT_THAT(found->notes, IsEmpty());
  const auto paths = paths_from(graph, index_of(graph, "gpu0"));
  EXPECT_EQ(paths[index_of(graph, "gpu3")].type, PathType::kNvl);
  EXPECT_DOUBLE_EQ(paths[index_of(graph, "gpu3")].gbytes_per_s, 18 * 20.6);
  EXPECT_EQ(paths[index_of(graph, "mlx5_0")].type, PathType::kPix);
  EXPECT_DOUBLE_EQ(paths[index_of(graph, "mlx5_0")].gbytes_per_s, 24);
  EXPECT_EQ(paths[index_of(graph, "mlx5_1:2")].type, PathType::kSys);
  EXPECT_EQ(paths[index_of(graph, "cpu0")].type, PathType::kPhb);
  const GraphNode& nic = graph.nodes[index_of(graph, "mlx5_0")];
  EXPECT_EQ(nic.nic.megabits_per_s, 400'000);
  EXPECT_EQ(nic.nic.guid, "0x98039b0300ae6d94");
  EXPECT_EQ(nic.pci.bus_id, "0000:13:00.0");
}

TEST(Discover, WhatIsFoundIsWrittenAndReadAgain) {
  FakeSysfs sysfs;
  fill(sysfs);
  const Result<Discovery> found = discover({.root = sysfs.root(), .synthetic = kTwoSockets}, four_gpus());
  ASSERT_TRUE(found);
  const Result<std::string> xml = to_xml(found->graph);
  ASSERT_TRUE(xml) << to_string(xml.error());
  EXPECT_EQ(*parse_xml(*xml), in_file_order(found->graph)) << *xml;
}

TEST(Discover, DirectNvLinksAreTakenOnce) {
  FakeSysfs sysfs;
  fill(sysfs);
  GpuTopology gpus = four_gpus();
  for (GpuPath& path : gpus.paths) path.nvlinks = {};
  gpus.paths[1].nvlinks = {4, 40, false};
  gpus.paths[4].nvlinks = {4, 40, false};
  const Result<Discovery> found = discover({.root = sysfs.root(), .synthetic = kTwoSockets}, gpus);
  ASSERT_TRUE(found);
  std::vector<GraphLink> nvlinks;
  for (const GraphLink& link : found->graph.links) {
    if (link.kind == LinkKind::kNvLink) nvlinks.push_back(link);
  }
  const Graph& graph = found->graph;
  EXPECT_THAT(nvlinks, ElementsAre(GraphLink{index_of(graph, "gpu0"), index_of(graph, "gpu1"), LinkKind::kNvLink, 4,
                                             4 * nvlink_gbytes_per_s(90)}));
}

TEST(Discover, WithoutADriverGpusAreKnownByClass) {
  FakeSysfs sysfs;
  fill(sysfs);
  GpuTopology none;
  none.no_driver = "no CUDA driver";
  const Result<Discovery> found = discover({.root = sysfs.root(), .synthetic = kTwoSockets}, none);
  ASSERT_TRUE(found);
  EXPECT_EQ(nodes_of(found->graph, NodeKind::kGpu).size(), 4U);
  EXPECT_THAT(found->notes, ElementsAre(HasSubstr("4 GPUs are known by their PCI class only: no CUDA driver")));
}

TEST(Discover, DeadAndUnplacedPartsAreTold) {
  FakeSysfs sysfs;
  fill(sysfs);
  sysfs.add_pci({"0000:a0:00.0"}, "0x020000", "0x1af4", "", 0, -1);
  sysfs.add_pci({"0000:a1:00.0"}, "0x020000", "0x1af4", "Unknown", 255, 1);
  sysfs.add_interface("eth0", "0000:a0:00.0", "up", "-1");
  sysfs.add_interface("eth1", "0000:a1:00.0", "down", "1000");
  sysfs.add_rdma("mlx5_9", "0000:a1:00.0", "1", "1: DOWN", "10 Gb/sec (4X SDR)");
  const Result<Discovery> found = discover({.root = sysfs.root(), .synthetic = kTwoSockets}, four_gpus());
  ASSERT_TRUE(found);
  EXPECT_THAT(found->notes, ElementsAre(HasSubstr("NIC mlx5_9 is down: it is left out"),
                                        HasSubstr("the speed of NIC eth0 is unknown: 10 Gbit/s"),
                                        HasSubstr("the NUMA node of 0000:a0:00.0 is unknown")));
  const GraphNode& eth0 = found->graph.nodes[index_of(found->graph, "eth0")];
  EXPECT_EQ(eth0.nic.megabits_per_s, 10'000);
  EXPECT_EQ(eth0.nic.device, 3);
}

TEST(Discover, ALinkIsAsSlowAsItsSlowerEnd) {
  FakeSysfs sysfs;
  sysfs.add_pci({"0000:01:00.0"}, "0x060400", "0x8086", "8.0 GT/s PCIe", 4, 0);
  sysfs.add_pci({"0000:01:00.0", "0000:02:00.0"}, "0x030200", "0x10de", "32.0 GT/s PCIe", 16, 0);
  const std::vector<SysfsPci> devices = read_pci_devices(sysfs.root());
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[1].pci.gigatransfers_per_s, 8);
  EXPECT_EQ(devices[1].pci.width, 4U);
  EXPECT_THAT(devices[1].above, IsEmpty());  // a root port belongs to the CPU
}

TEST(Discover, AnEmptySysfsIsNoError) {
  const Result<Discovery> found = discover({.root = "nowhere", .synthetic = "pack:1 core:2 pu:1"}, {});
  ASSERT_TRUE(found) << to_string(found.error());
  EXPECT_EQ(found->graph.nodes.size(), 1U);
}

// The mask of a NUMA node has room for 65,536 CPUs.
TEST(Processors, AreLeftOutIfTheirNumbersAreTooHigh) {
  const Result<Processors> processors = discover_processors("pack:2 numa:1 pu:2(indexes=0,1,65535,65536)");
  ASSERT_TRUE(processors) << to_string(processors.error());
  ASSERT_EQ(processors->nodes.size(), 2U);
  EXPECT_EQ(processors->nodes[1].cpus, std::vector<std::uint32_t>{65'535});
  EXPECT_TRUE(processors->nodes[1].cpu.affinity.starts_with("80000000,00000000,"));
}

TEST(Processors, AreWhatHwlocSays) {
  const Result<Processors> processors = discover_processors("pack:2 numa:2 l3:1 core:20 pu:1");
  ASSERT_TRUE(processors) << to_string(processors.error());
  EXPECT_EQ(processors->packages, 2U);
  EXPECT_EQ(processors->cores, 80U);
  ASSERT_EQ(processors->nodes.size(), 4U);
  EXPECT_EQ(processors->nodes[1].number, 1);
  EXPECT_EQ(processors->nodes[1].cpu.affinity, "00000000,000000ff,fff00000");
  EXPECT_EQ(processors->nodes[1].cpus.size(), 20U);
  ASSERT_EQ(processors->caches.size(), 1U);
  EXPECT_EQ(processors->caches[0].name, "L3");
  EXPECT_EQ(processors->caches[0].count, 4U);
  EXPECT_EQ(processors->caches[0].cpus_each, 20U);
}

TEST(Processors, WordsThatHwlocDoesNotKnowAreRefused) {
  const Result<Processors> processors = discover_processors("two sockets, please");
  ASSERT_FALSE(processors);
  EXPECT_EQ(processors.error().code, ErrorCode::kInvalidArgument);
}

TEST(Processors, OfThisMachineAreFound) {
  const Result<Processors> processors = discover_processors("");
  ASSERT_TRUE(processors) << to_string(processors.error());
  EXPECT_GE(processors->nodes.size(), 1U);
  EXPECT_FALSE(processors->nodes[0].cpus.empty());
}

}  // namespace
}  // namespace tutti
