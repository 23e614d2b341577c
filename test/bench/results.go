// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// results has everything that one run measured; it is the content of results.json. Times are in
// nanoseconds.
type results struct {
	Date      string                    `json:"date"`
	Quick     bool                      `json:"quick"`
	Machine   machine                   `json:"machine"`
	Latency   map[string]latency        `json:"latency"`   // by "set/chain"
	Bursts    map[string]burst          `json:"bursts"`    // by "set/callers"
	Processes map[string]map[string]int `json:"processes"` // by "set/verb", then by program
	Version   map[string]sample         `json:"version"`   // by set
	Leaks     map[string]map[string]int `json:"leaks"`     // by "set/harm", then by kind
	Size      map[string]int64          `json:"size"`      // by set, bytes
	Growth    map[string][]point        `json:"growth"`    // by set
	Packets   map[string][]float64      `json:"packets"`   // rates, by "set/way/kind"
	Notes     map[string]string         `json:"notes,omitempty"`

	Policies     map[string][]float64     `json:"-"` // rates, by "way.policies/kind"; written to another file
	Ports        map[string][]float64     `json:"-"` // rates, by "set-chain.standing/way/kind"; written to another file
	Account      map[string][][]phase     `json:"-"` // by set; written to another file
	AccountFloor sample                   `json:"-"`
	Docker       map[string]*dockerResult `json:"-"` // by the lab's name of the dockerd; written to another file
}

type machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	Reference string `json:"reference"`
}

// latency is a chain's costs, by verb.
type latency struct {
	Add   sample `json:"add"`
	Check sample `json:"check"`
	Del   sample `json:"del"`
}

func (l *latency) append(c cycle) {
	l.Add, l.Del = append(l.Add, c.Add), append(l.Del, c.Del)
	if c.CheckErr == "" {
		l.Check = append(l.Check, c.Check)
	}
}

// burst is a number of containers that several callers attach and detach at once. Each cost is that
// of a whole burst.
type burst struct {
	Pods int    `json:"pods"`
	Add  sample `json:"add"`
	Del  sample `json:"del"`
}

// perSecond returns the pods per second over all bursts of a sample.
func (b burst) perSecond(s sample) float64 {
	var wall time.Duration
	for _, c := range s {
		wall += c.Wall
	}
	if wall == 0 {
		return 0
	}
	return float64(b.Pods*len(s)) / wall.Seconds()
}

// point is the cost of an attachment on a node with Standing other attachments.
type point struct {
	Standing int     `json:"standing"`
	Cost     latency `json:"cost"`
}

func newResults(quick bool) results {
	return results{
		Date: time.Now().UTC().Format(time.DateOnly), Quick: quick, Machine: thisMachine(),
		Latency: map[string]latency{}, Bursts: map[string]burst{}, Processes: map[string]map[string]int{},
		Version: map[string]sample{}, Leaks: map[string]map[string]int{}, Size: map[string]int64{}, Growth: map[string][]point{},
		Packets: map[string][]float64{}, Policies: map[string][]float64{}, Ports: map[string][]float64{}, Account: map[string][][]phase{}, Notes: map[string]string{},
	}
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Reference: reftest.Version, CPU: "unknown"}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "model name\t: "); ok {
			m.CPU = name
			break
		}
	}
	return m
}
