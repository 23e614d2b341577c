// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	var s sample
	for i := range 100 {
		s = append(s, cost{Wall: time.Duration(100 - i)})
	}
	for p, want := range map[int]time.Duration{0: 1, 1: 1, 50: 50, 95: 95, 99: 99, 100: 100} {
		if got := s.wall(p); got != want {
			t.Errorf("p%d = %d, want %d", p, got, want)
		}
	}
	if got := sample(nil).wall(50); got != 0 {
		t.Errorf("p50 of nothing = %d, want 0", got)
	}
}

func TestLineVerdicts(t *testing.T) {
	for _, tt := range []struct {
		name           string
		line           line
		ratio, verdict string
	}{
		{"met", line{value: 5, against: 60, target: 1. / 10, limit: 1. / 8}, "1/12.0", met},
		{"between target and limit", line{value: 7, against: 63, target: 1. / 10, limit: 1. / 8}, "1/9.0", inReserve},
		{"past the limit", line{value: 20, against: 60, target: 1. / 10, limit: 1. / 8}, "1/3.0", missed},
		{"more is better, met", line{value: 100, against: 20, target: 5, more: true}, "5.00x", met},
		{"more is better, missed", line{value: 80, against: 20, target: 5, more: true}, "4.00x", missed},
		{"never measured", line{against: 60, target: 1}, "-", unmeasured},
	} {
		tt.line.unit = millis
		if got := tt.line.row(); got.Ratio != tt.ratio || got.Verdict != tt.verdict {
			t.Errorf("%s: %s %s, want %s %s", tt.name, got.Ratio, got.Verdict, tt.ratio, tt.verdict)
		}
	}
}

// libcni must accept every configuration in both versions that the benchmark uses.
func TestConflists(t *testing.T) {
	for _, version := range []string{confVersion, leakVersion} {
		for _, name := range []string{"full", "full-nft", "full-one", "grow", "grow-one", "bridge", "ptp4", "ptp6", "macvlan4", "macvlan6", "ipvlan4", "dhcp", "hl0", "flat0", "hl60k"} {
			list, err := conflist(name, version)
			if err != nil {
				t.Errorf("%s %s: %v", name, version, err)
			} else if list.Name != name || len(list.Plugins) == 0 {
				t.Errorf("%s %s: read back as %q with %d plugins", name, version, list.Name, len(list.Plugins))
			}
		}
	}
}

// A report without measurements still has a row for every promise, so no promise can drop out
// unnoticed.
func TestReportNamesEveryPromise(t *testing.T) {
	r := newResults(true)
	var b bytes.Buffer
	r.write(&b)
	if n := strings.Count(b.String(), unmeasured); n != len(r.rows()) {
		t.Errorf("%d lines unmeasured in an empty run of %d lines:\n%s", n, len(r.rows()), b.String())
	}
}

func TestResultsSurviveJSON(t *testing.T) {
	r := newResults(false)
	r.Growth[ours] = []point{{Standing: 5, Cost: latency{Add: sample{{Wall: 7}}}}}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back results
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if got := back.Growth[ours][0].Cost.Add.wall(50); got != 7 {
		t.Errorf("growth read back as %d, want 7", got)
	}
}

func TestGrowthSVGIsXML(t *testing.T) {
	svg := growthSVG(map[string][]point{
		reference: {{Standing: 0, Cost: latency{Add: sample{{Wall: 60e6}}, Del: sample{{Wall: 180e6}}}}, {Standing: 1000}},
		ours:      {{Standing: 5000, Cost: latency{Add: sample{{Wall: 5e6}}}}},
	})
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
}

func TestDockerReport(t *testing.T) {
	r := newResults(false)
	at := func(n time.Duration) sample { return sample{{Wall: n * time.Millisecond}} }
	r.Docker = map[string]*dockerResult{"new": {
		Version: "29", Run: map[string]sample{"none": at(150), "ours-p": at(290)}, Remove: map[string]sample{"none": at(90), "ours-p": at(190)},
		Bursts:  map[string]burst{"none": {Pods: 16, Add: at(2000), Del: at(1000)}},
		Calls:   map[string]sample{".CreateEndpoint": at(20), ".Join": at(15), ".DeleteEndpoint": at(50)},
		Plugins: map[string][]millisecond{"ADD bridge": {9, 10, 30}, "ADD firewall": {5}, "DEL bridge": {25}},
	}}
	var b bytes.Buffer
	r.writeDocker(&b)
	for _, want := range []string{
		"## dockerd 29\n", "| `--network none`, the floor | 150 | 150 | 0 | 90 | 90 | 0 | 8.0/s | 16.0/s | 1 |",
		"| CreateEndpoint | 20.00 |", "Starting a container with a published port takes 140 ms longer on a network of ours than without a network. The driver takes 35 ms of this, of which the plugins take 15 ms", "Removing a container with a published port takes 100 ms longer on a network of ours than without a network. The driver takes 50 ms of this, of which the plugins take 25 ms",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}

// If our rate is too far below the reference's of the same round, the row says missed. A path that
// was not measured has no row.
func TestPacketRows(t *testing.T) {
	r := newResults(false)
	r.Packets[reference+"/"+direct+"/stream"] = []float64{30, 10, 20}
	r.Packets[oursOne+"/"+direct+"/stream"] = []float64{27, 9, 16}
	r.Packets[reference+"/"+direct+"/requests"] = []float64{2000}
	r.Packets[oursOne+"/"+direct+"/requests"] = []float64{1900}
	var b bytes.Buffer
	r.writePackets(&b)
	for _, want := range []string{
		"| direct | stream, Gbit/s | 20.0 (10.0-30.0) | 16.0 (9.0-27.0) | 0.90x (0.80-0.90) | **missed** |\n",
		"| direct | requests, requests/s | 2000 (2000-2000) | 1900 (1900-1900) | 0.95x (0.95-0.95) | met |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no row %q in\n%s", want, &b)
		}
	}
	if strings.Contains(b.String(), vxlan+" |") {
		t.Errorf("a row for what was not measured:\n%s", &b)
	}
}

// The page of ports judges us by our own rate with one container, and has the reference beside it. What
// was not measured is a dash.
func TestPortsPage(t *testing.T) {
	for _, tt := range []struct {
		many float64
		want string
	}{
		{99, "| Patchbay | 100.0 (100.0-100.0) | 99.0 (99.0-99.0) | 0.99x (0.99-0.99) | met |\n"},
		{97, "| Patchbay | 100.0 (100.0-100.0) | 97.0 (97.0-97.0) | 0.97x (0.97-0.97) | **missed** |\n"},
		{0, "| Patchbay | 100.0 (100.0-100.0) | - | - | not measured |\n"},
	} {
		r := newResults(false)
		r.Ports[portKey(byPatchbay, 1, promised)] = []float64{100}
		r.Ports[portKey(byIptables, 1, promised)] = []float64{50}
		r.Ports[portKey(byIptables, 1000, promised)] = []float64{20}
		if tt.many > 0 {
			r.Ports[portKey(byPatchbay, 1000, promised)] = []float64{tt.many}
		}
		var b bytes.Buffer
		r.writePorts(&b)
		for _, want := range []string{tt.want, "| reference, iptables | 50.0 (50.0-50.0) | 20.0 (20.0-20.0) | 0.40x (0.40-0.40) |  |\n"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no row %q in\n%s", want, &b)
			}
		}
		if strings.Contains(b.String(), "| reference, nftables |") {
			t.Errorf("a row for what was not measured:\n%s", &b)
		}
	}
}

func TestPodLists(t *testing.T) {
	for _, set := range []string{reference, oursOne} {
		for node := range 2 {
			list, err := podList(set, node)
			if err != nil {
				t.Fatalf("%s: %v", set, err)
			}
			if want := podCIDR(node).String(); !bytes.Contains(list.Bytes, []byte(want)) {
				t.Errorf("%s: node %d has no range %s:\n%s", set, node, want, list.Bytes)
			}
		}
	}
}
