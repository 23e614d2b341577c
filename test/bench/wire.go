// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// workerEnv holds the JSON of a node when this program runs as its worker.
const workerEnv = "PATCHBAY_BENCH_WORKER"

// node says what a worker works with.
type node struct {
	Name    string `json:"name"`
	Plugins string `json:"plugins"` // the only directory of CNI_PATH
	Empty   string `json:"empty"`   // floor/empty, built
	DelLink string `json:"delLink"` // floor/dellink, built
}

// request is one thing a worker is asked for; which fields count depends on Op.
type request struct {
	Op      string `json:"op"`
	Chain   string `json:"chain,omitempty"`
	N       int    `json:"n,omitempty"`
	Callers int    `json:"callers,omitempty"`

	Pod string `json:"pod,omitempty"` // a pod of the experiment packets
	To  string `json:"to,omitempty"`  // address of its traffic

	Keeper []string `json:"keeper,omitempty"` // command that keeps DHCP leases
}

// cost is what one operation took.
type cost struct {
	Wall time.Duration `json:"wall"`
	CPU  time.Duration `json:"cpu"` // user and system, of all processes started
}

// cycle is one attachment made, checked and removed.
type cycle struct {
	Add   cost `json:"add"`
	Check cost `json:"check"`
	Del   cost `json:"del"`

	// CheckErr is why CHECK failed. That is no end for plugins of others: an
	// old one may be unable to check what it made.
	CheckErr string `json:"checkErr,omitempty"`
}

// reply answers a request.
type reply struct {
	Err    string         `json:"err,omitempty"`
	Cycle  cycle          `json:"cycle"`
	Costs  []cost         `json:"costs,omitempty"`
	Counts map[string]int `json:"counts,omitempty"`
	Text   string         `json:"text,omitempty"`
	Rate   float64        `json:"rate,omitempty"`
}

// serve is the worker: it enters its world, then answers requests until stdin
// ends.
func serve(in io.Reader, out io.Writer) error {
	var n node
	if err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &n); err != nil {
		return fmt.Errorf("read %s: %w", workerEnv, err)
	}
	os.Unsetenv(workerEnv)
	w, err := newWorker(n)
	if err != nil {
		return fmt.Errorf("worker %s: %w", n.Name, err)
	}
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var req request
		switch err := dec.Decode(&req); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		rep, err := w.do(req)
		if err != nil {
			rep.Err = fmt.Sprintf("%s: %s %s: %v", n.Name, req.Op, req.Chain, err)
		}
		if err := enc.Encode(rep); err != nil {
			return err
		}
	}
}
