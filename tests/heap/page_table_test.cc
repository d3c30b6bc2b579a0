#include "heap/page_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace tutti {
namespace {

// A table, and a simple implementation of the same calls with which it is compared.
class PageTableTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kPages = 1000;

  PageTableTest() : memory_(PageTable::bytes_for(kPages) / sizeof(std::uint64_t)), dirty_(kPages, false) {
    table_.create(memory_.data(), kPages);
  }

  // Checks the new block against those that exist, and the report of its dirty pages.
  void expect_new_block(const PageTable::Block& block, std::uint32_t count, std::uint32_t alignment) {
    EXPECT_EQ(block.first % alignment, 0U);
    std::uint32_t dirty = 0;
    std::uint32_t first_dirty = PageTable::kNoPage;
    std::uint32_t last_dirty = 0;
    for (std::uint32_t page = block.first; page < block.first + count; ++page) {
      EXPECT_TRUE(owner_.emplace(page, block.first).second) << "page " << page << " is in two blocks";
      EXPECT_TRUE(usable_.contains(page)) << page;
      if (!dirty_[page]) continue;
      ++dirty;
      first_dirty = std::min(first_dirty, page);
      last_dirty = page;
    }
    EXPECT_EQ(block.dirty_pages, dirty);
    if (dirty > 0) {
      EXPECT_EQ(block.dirty_range.first, first_dirty);
      EXPECT_EQ(block.dirty_range.count, last_dirty - first_dirty + 1);
    }
    blocks_[block.first] = count;
  }
  void add(PageTable::Range range) {
    table_.add(range);
    for (std::uint32_t page = range.first; page < range.first + range.count; ++page) usable_.insert(page);
  }
  void forget(std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t page = first; page < first + count; ++page) {
      owner_.erase(page);
      dirty_[page] = true;
    }
  }
  // The longest run of free pages.
  std::uint32_t longest_free() const {
    std::uint32_t longest = 0;
    std::uint32_t length = 0;
    for (std::uint32_t page = 0; page < kPages; ++page) {
      length = usable_.contains(page) && !owner_.contains(page) ? length + 1 : 0;
      longest = std::max(longest, length);
    }
    return longest;
  }
  // Calls clean_extents() until at most `most` dirty pages are left. The function that it calls fails for the third
  // extent, as if the system did not take back its pages.
  void clean(std::uint32_t most) {
    int number = 0;
    bool failed = false;
    std::uint32_t shortest = PageTable::kNoPage;
    table_.clean_extents(most, [&](PageTable::Range extent) {
      EXPECT_LE(extent.count, shortest + shortest / 8 + 1) << "long extents come first";
      shortest = std::min(shortest, extent.count);
      if (++number == 3) {
        failed = true;
        return false;
      }
      std::fill_n(dirty_.begin() + extent.first, extent.count, false);
      return true;
    });
    EXPECT_TRUE(failed || table_.dirty_pages() <= most);
  }
  void expect_all_states() const {
    std::uint32_t dirty = 0;
    for (std::uint32_t page = 0; page < kPages; ++page) {
      const bool separates = !usable_.contains(page) && (usable_.contains(page - 1) || usable_.contains(page + 1));
      const PageState expected = blocks_.contains(page)  ? PageState::kFirst
                                 : owner_.contains(page) ? PageState::kInner
                                 : separates             ? PageState::kNone
                                 : dirty_[page]          ? PageState::kDirty
                                                         : PageState::kClean;
      ASSERT_EQ(table_.state(page), expected) << page;
      dirty += expected == PageState::kDirty ? 1 : 0;
    }
    ASSERT_EQ(table_.dirty_pages(), dirty);
    for (const auto& [first, count] : blocks_) ASSERT_EQ(table_.length(first), count);
  }

  std::vector<std::uint64_t> memory_;
  PageTable table_;
  std::map<std::uint32_t, std::uint32_t> blocks_;  // first page -> number of pages
  std::map<std::uint32_t, std::uint32_t> owner_;   // page -> first page of its block
  std::set<std::uint32_t> usable_;
  std::vector<bool> dirty_;
};

TEST_F(PageTableTest, RandomCallsAgreeWithASimpleImplementation) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::fill(memory_.begin(), memory_.end(), 0);
    table_ = PageTable();
    table_.create(memory_.data(), kPages);
    blocks_.clear();
    owner_.clear();
    usable_.clear();
    dirty_.assign(kPages, false);
    add({1, 400});
    add({402, 300});
    std::mt19937 random(seed);
    const auto below = [&random](std::uint32_t limit) { return static_cast<std::uint32_t>(random()) % limit; };
    for (int step = 0; step < 2000; ++step) {
      const std::uint32_t kind = below(10);
      if (kind < 4 || blocks_.empty()) {
        const std::uint32_t count = 1 + below(below(4) == 0 ? 200 : 12);
        const std::uint32_t alignment = std::uint32_t{1} << (below(3) == 0 ? below(6) : 0);
        const PageTable::Block block = table_.allocate(count, alignment);
        if (block.first != PageTable::kNoPage) {
          expect_new_block(block, count, alignment);
        } else {
          // Every extent in the list of the next size is long enough, and would have been found.
          const std::uint32_t needed = count + alignment - 1;
          EXPECT_LE(longest_free(), needed + needed / 8);
        }
        continue;
      }
      auto block = std::next(blocks_.begin(), below(static_cast<std::uint32_t>(blocks_.size())));
      const auto [first, count] = *block;
      if (kind < 7) {
        table_.release(first);
        blocks_.erase(block);
        forget(first, count);
        if (below(8) == 0) clean(below(100));
      } else {
        const std::uint32_t wanted = 1 + below(30);
        bool possible = true;
        for (std::uint32_t page = first + count; page < first + wanted; ++page) {
          possible = possible && usable_.contains(page) && !owner_.contains(page);
        }
        ASSERT_EQ(table_.resize(first, wanted), possible);
        if (!possible) continue;
        if (wanted < count) forget(first + wanted, count - wanted);
        for (std::uint32_t page = first + count; page < first + wanted; ++page) owner_[page] = first;
        block->second = wanted;
      }
      if (step % 50 == 0) expect_all_states();
    }
    expect_all_states();
    for (const auto& [first, count] : blocks_) table_.release(first);
    // All free pages are one extent again, so the longest possible blocks can be allocated.
    EXPECT_NE(table_.allocate(400, 1).first, PageTable::kNoPage);
    EXPECT_NE(table_.allocate(300, 1).first, PageTable::kNoPage);
    EXPECT_EQ(table_.allocate(1, 1).first, PageTable::kNoPage);
  }
}

TEST_F(PageTableTest, ABlockOfTheSameSizeIsReused) {
  add({1, 900});
  const std::uint32_t first = table_.allocate(17, 1).first;
  table_.allocate(1, 1);
  table_.release(first);
  const PageTable::Block again = table_.allocate(17, 1);
  EXPECT_EQ(again.first, first);
  EXPECT_EQ(again.dirty_pages, 17U);
}

TEST_F(PageTableTest, BlocksStayWhenFreeExtentsAreDropped) {
  add({1, 100});
  const std::uint32_t first = table_.allocate(10, 1).first;
  table_.release(table_.allocate(5, 1).first);
  table_.drop_free_extents();
  EXPECT_EQ(table_.dirty_pages(), 0U);
  EXPECT_EQ(table_.allocate(1, 1).first, PageTable::kNoPage);
  EXPECT_EQ(table_.state(first), PageState::kFirst);
  EXPECT_EQ(table_.length(first), 10U);
  table_.remove(first);
  EXPECT_FALSE(table_.is_block(first));
  add({202, 100});
  EXPECT_EQ(table_.allocate(100, 1).first, 202U);
}

TEST_F(PageTableTest, NoBlockIsLongerThanAnExtent) {
  add({1, 100});
  EXPECT_EQ(table_.allocate(101, 1).first, PageTable::kNoPage);
  EXPECT_EQ(table_.allocate(0xfffffff0, 4096).first, PageTable::kNoPage);
  EXPECT_EQ(table_.allocate(0, 1).first, PageTable::kNoPage);
  EXPECT_EQ(table_.allocate(100, 1).first, 1U);
}

}  // namespace
}  // namespace tutti
