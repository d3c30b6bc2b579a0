// For tests: small made-up topology files, and the published ones if the data folder exists.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace tutti::testing {

// Two sockets, each with a switch, two GPUs and a NIC. The GPUs have NVLinks in pairs and to a switch. Every element
// that NCCL knows occurs somewhere.
inline const std::string kTwoSockets = R"(<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
<pci busid="0000:10:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
<pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:12:00.0" count="4" tclass="0x030200"/>
          <nvlink target="0000:a0:00.0" count="6" tclass="0x068000"/>
          <nvlink target="0000:a1:00.0" count="8" tclass="0x068000"/>
        </gpu>
      </pci>
<pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1">
          <nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>
          <nvlink target="0000:a0:00.0" count="14" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" latency="0.000000" guid="0x1" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:90:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:91:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="2" sm="90" rank="2" gdr="0">
          <c2c bw="25000" count="2"/>
        </gpu>
      </pci>
      <pci busid="0000:92:00.0" class="0x020000" link_speed="16 GT/s" link_width="8">
        <nic>
          <net name="mlx5_1" dev="1" speed="100000" port="1" guid="0x2" maxconn="131072" gdr="1"/>
          <net name="mlx5_2" dev="2" speed="100000" port="2" guid="0x3" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <nic>
      <net name="eth0" dev="3" speed="25000" port="0" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
)";

// The format that RCCL writes.
inline const std::string kXgmi = R"(<system version="2">
  <cpu numaid="0" affinity="ffffffff,ffffffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="48">
    <pci busid="0000:c1:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="104" gcn="910" arch="38911" rank="0" gdr="0">
        <xgmi target="0000:c5:00.0" count="2" tclass="0x038000"/>
      </gpu>
    </pci>
    <pci busid="0000:C5:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="104" gcn="910" arch="38911" rank="1" gdr="0">
        <xgmi target="0000:C1:00.0" count="2" tclass="0x038000"/>
      </gpu>
    </pci>
  </cpu>
</system>
)";

// The format of cloud providers, which describe PCI devices only by their class.
inline const std::string kSkeleton = R"(<system version="1">
  <cpu numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0003:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0101:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
</system>
)";

// Returns an empty list if the data folder does not exist. `source_dir` is the root of the source tree.
inline std::vector<std::filesystem::path> published_topologies(const std::filesystem::path& source_dir) {
  const char* folder_name = std::getenv("TUTTI_SHARED_DATA");
  const std::filesystem::path folder =
      (folder_name != nullptr ? std::filesystem::path(folder_name) : source_dir / ".." / "shared" / "data") /
      "topologies";
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".xml") files.push_back(entry.path());
  }
  return files;
}

inline std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace tutti::testing
