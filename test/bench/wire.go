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

// workerEnv is set in a worker's environment. It holds the JSON of the worker's node.
const workerEnv = "PATCHBAY_BENCH_WORKER"

// node is the configuration of a worker.
type node struct {
	Name    string `json:"name"`
	Plugins string `json:"plugins"` // the only directory of CNI_PATH
	Empty   string `json:"empty"`   // path of the program floor/empty
	DelLink string `json:"delLink"` // path of the program floor/dellink

	Resident bool `json:"resident"` // a process runs the plugins' calls
}

// request asks a worker for one operation. Op decides which of the other fields count.
type request struct {
	Op      string `json:"op"`
	Chain   string `json:"chain,omitempty"`
	N       int    `json:"n,omitempty"`
	Callers int    `json:"callers,omitempty"`

	Pod string `json:"pod,omitempty"` // a pod of the experiment packets
	To  string `json:"to,omitempty"`  // address to which the pod's traffic goes

	Keeper []string `json:"keeper,omitempty"` // command that keeps DHCP leases
}

// cost is the time that one operation took.
type cost struct {
	Wall time.Duration `json:"wall"`
	CPU  time.Duration `json:"cpu"` // user and system, of all processes started
}

// cycle is one attachment that was made, checked and removed.
type cycle struct {
	Add   cost `json:"add"`
	Check cost `json:"check"`
	Del   cost `json:"del"`

	// CheckErr is why CHECK failed. If CHECK of another project's plugin fails, the run goes on,
	// because an old plugin may be unable to check what it made.
	CheckErr string `json:"checkErr,omitempty"`
}

// reply is the answer to a request.
type reply struct {
	Err    string         `json:"err,omitempty"`
	Cycle  cycle          `json:"cycle"`
	Costs  []cost         `json:"costs,omitempty"`
	Counts map[string]int `json:"counts,omitempty"`
	Text   string         `json:"text,omitempty"`
	Rate   float64        `json:"rate,omitempty"`
	Phases []phase        `json:"phases,omitempty"`
}

// serve is the main function of a worker. It enters its namespaces, and answers requests until
// its standard input ends.
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
