// Tests of the SVG helper that the drawings of plans, machines and simulated calls share.
#include "tools/common/svg_drawing.h"

#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

TEST(SvgText, IsShortenedByCharactersAndNotByBytes) {
  EXPECT_EQ(shorten("short", 5), "short");
  EXPECT_EQ(shorten("longer", 5), "lon..");
  EXPECT_EQ(shorten("\u03a3\u00fc\u20ac\U0001F600!", 5), "\u03a3\u00fc\u20ac\U0001F600!");  // 5 characters, 12 bytes
  EXPECT_EQ(shorten("\u03a3\u00fc\u20ac\U0001F600!?", 5), "\u03a3\u00fc\u20ac..");
  EXPECT_EQ(shorten("\u03a3\u00fc\u20ac", 2), "..");
  EXPECT_EQ(shorten("", 0), "");
  EXPECT_EQ(letter_count("a\u03a3\U0001F600"), 3U);
}

TEST(SvgText, IsEscaped) { EXPECT_EQ(escaped("<a href=\"x\"> & b\n\x01"), "&lt;a href=&quot;x&quot;&gt; &amp; b  "); }

TEST(SvgDrawing, HasTheShapesInTheOrderOfTheCalls) {
  SvgDrawing drawing;
  drawing.line(1, 2.5, 3.004, -0.001, {.colour = "#111111", .width = 1.25, .dashes = "5 3"});
  drawing.path("M0 0 L1 1", {.colour = "#222222", .opacity = 0.5});
  drawing.area("M0 0 z", "#333333");
  drawing.box(0, 1, 2, 3, {.fill = "#444444"});
  drawing.box(0, 1, 2, 3, {.fill = "#444444", .line = "#555555", .line_width = 0, .radius = 4, .title = "a < b"});
  drawing.circle(1, 2, 3, "#666666");
  drawing.text(1, 2, "a & b", {.size = 11, .colour = "#777777", .bold = true, .anchor = "end"});
  drawing.text(1, 2, "", {});
  EXPECT_EQ(drawing.document(100, 50),
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"100\" height=\"50\" viewBox=\"0 0 100 50\" "
            "font-family=\"Helvetica, Arial, sans-serif\">\n"
            "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
            "<line x1=\"1\" y1=\"2.5\" x2=\"3\" y2=\"0\" stroke=\"#111111\" stroke-width=\"1.25\" "
            "stroke-dasharray=\"5 3\"/>\n"
            "<path d=\"M0 0 L1 1\" fill=\"none\" stroke=\"#222222\" stroke-width=\"1\" stroke-opacity=\"0.5\"/>\n"
            "<path d=\"M0 0 z\" fill=\"#333333\"/>\n"
            "<rect x=\"0\" y=\"1\" width=\"2\" height=\"3\" fill=\"#444444\"/>\n"
            "<rect x=\"0\" y=\"1\" width=\"2\" height=\"3\" rx=\"4\" fill=\"#444444\" stroke=\"#555555\" "
            "stroke-width=\"0\"><title>a &lt; b</title></rect>\n"
            "<circle cx=\"1\" cy=\"2\" r=\"3\" fill=\"#666666\"/>\n"
            "<text x=\"1\" y=\"2\" font-size=\"11\" fill=\"#777777\" text-anchor=\"end\" font-weight=\"bold\">"
            "a &amp; b</text>\n</svg>\n");
}

}  // namespace
}  // namespace tutti::tool
