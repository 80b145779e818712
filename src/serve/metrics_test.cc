#include "serve/metrics.h"

#include <gtest/gtest.h>

namespace octet::serve {
namespace {

TEST(Metrics, PrintsWhatPrometheusReads) {
  Metrics metrics("octet_");
  Counter& stop = metrics.counter("requests_total", "Finished requests.", metric_label("reason", "stop"));
  Counter& odd = metrics.counter("requests_total", "Finished requests.", metric_label("reason", "a\"b\\c\nd"));
  metrics.gauge("running", "Texts.", [] { return 2.5; });
  Histogram& seconds = metrics.histogram("seconds", "Time.", {0.1, 1});
  stop.add(), stop.add(), odd.add(0.5);
  seconds.observe(0.1), seconds.observe(0.5, 3), seconds.observe(7);
  EXPECT_EQ(metrics.print(),
            "# HELP octet_requests_total Finished requests.\n"
            "# TYPE octet_requests_total counter\n"
            "octet_requests_total{reason=\"stop\"} 2\n"
            "octet_requests_total{reason=\"a\\\"b\\\\c\\nd\"} 0.5\n"
            "# HELP octet_running Texts.\n"
            "# TYPE octet_running gauge\n"
            "octet_running 2.5\n"
            "# HELP octet_seconds Time.\n"
            "# TYPE octet_seconds histogram\n"
            "octet_seconds_bucket{le=\"0.1\"} 1\n"
            "octet_seconds_bucket{le=\"1\"} 4\n"
            "octet_seconds_bucket{le=\"+Inf\"} 5\n"
            "octet_seconds_sum 8.6\n"
            "octet_seconds_count 5\n");
}

}  // namespace
}  // namespace octet::serve
