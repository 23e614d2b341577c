// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// Witness is an Engine that shares no author with the oracle: the evaluator of kube-network-policies, in
// a process of its own (test/witness). Where the two differ for a reason that is known, it answers as
// the oracle does, and counts the reason.
type Witness struct {
	Asked   int            // packets
	Excused map[string]int // different answers, by each reason (excuses)

	loaded    Cluster
	questions *json.Encoder
	answers   *json.Decoder
}

// NewWitness starts a witness, which ends with the test.
func NewWitness(t testing.TB) *Witness {
	t.Helper()
	process := exec.Command(reftest.Witness(t))
	process.Stderr = os.Stderr
	in, inErr := process.StdinPipe()
	out, outErr := process.StdoutPipe()
	if err := errors.Join(inErr, outErr, process.Start()); err != nil {
		t.Fatalf("start the witness: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), process.Wait()); err != nil {
			t.Errorf("end the witness: %v", err)
		}
	})
	w := &Witness{Excused: make(map[string]int), questions: json.NewEncoder(in), answers: json.NewDecoder(out)}
	for _, e := range excuses {
		w.Excused[e.reason] = 0
	}
	return w
}

// Load gives the witness the cluster as the API server stores it.
func (w *Witness) Load(c Cluster) error {
	w.loaded = c
	_, err := w.ask(map[string]any{"cluster": withDefaults(c.Clone())})
	return err
}

// Allows asks about a probe.
func (w *Witness) Allows(p Probe) (allowed bool, policy string, err error) {
	allowed, excuse, err := w.Says(p)
	return allowed != (excuse != ""), "", err
}

// Says returns what the witness itself says about a probe. If the oracle says otherwise, and there is a
// reason for that, it is the excuse.
func (w *Witness) Says(p Probe) (allowed bool, excuse string, err error) {
	w.Asked++
	allowed, err = w.ask(map[string]any{"packet": p})
	if err != nil || allowed == w.loaded.Decide(p).Allowed {
		return allowed, "", err
	}
	if excuse = w.loaded.excuse(p); excuse != "" {
		w.Excused[excuse]++
	}
	return allowed, excuse, nil
}

func (w *Witness) ask(question any) (allowed bool, err error) {
	var answer struct {
		Allowed bool
		Error   string
	}
	if err := errors.Join(w.questions.Encode(question), w.answers.Decode(&answer)); err != nil {
		return false, fmt.Errorf("ask the witness: %w", err)
	}
	if answer.Error != "" {
		err = errors.New("the witness: " + answer.Error)
	}
	return answer.Allowed, err
}

// withDefaults fills in what the API server does.
func withDefaults(c Cluster) Cluster {
	for i := range c.Policies {
		spec := &c.Policies[i].Spec
		spec.PolicyTypes = typesOf(&c.Policies[i])
		for _, rule := range spec.Ingress {
			defaultProtocols(rule.Ports)
		}
		for _, rule := range spec.Egress {
			defaultProtocols(rule.Ports)
		}
	}
	for i := range c.Pods {
		spec := &c.Pods[i].Spec
		for _, containers := range [][]api.Container{spec.Containers, spec.InitContainers} {
			for _, container := range containers {
				for j := range container.Ports {
					container.Ports[j].Protocol = containerProtocol(container.Ports[j])
				}
			}
		}
	}
	return c
}

func defaultProtocols(ports []api.NetworkPolicyPort) {
	for i := range ports {
		protocol := protocolOf(ports[i].Protocol)
		ports[i].Protocol = &protocol
	}
}
