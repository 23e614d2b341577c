// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft"
	policies "github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/services/enforce"
)

// servicesProgram is `services FILE`. It does what the agent of node n1 does if the cluster has the objects in a file (JSON, one object
// per line).
func servicesProgram() {
	if err := servicesTurn(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func servicesTurn(file string) error {
	s, err := servicesIn(file)
	if err != nil {
		return err
	}
	fw := nft.Open("")
	e := enforce.New(fw, enforce.Options{})
	p, err := e.Compile(s)
	if err == nil {
		err = e.Load(context.Background(), p)
	}
	return errors.Join(err, fw.Close())
}

// servicesIn reads what the agent knows.
func servicesIn(file string) (*services.State, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &services.State{Services: make(map[services.Name]*services.Service), Slices: make(map[services.Name][]*services.Slice)}
	for line := range strings.Lines(string(data)) {
		if err := addService(s, []byte(line)); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
	}
	s.Addresses, _, err = policies.NodeAddresses()
	return s, err
}

func addService(s *services.State, line []byte) error {
	var kind struct{ Kind string }
	if err := json.Unmarshal(line, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Node":
		n, err := services.ParseNode(line)
		s.Node = n
		return err
	case "Service":
		o, err := services.ParseService(line)
		s.Services[o.Name] = &o
		return err
	case "EndpointSlice":
		o, err := services.ParseSlice(line)
		s.Slices[o.Service] = append(s.Slices[o.Service], &o)
		return err
	case "ServiceCIDR":
		_, ranges, err := services.ParseServiceCIDR(line)
		s.CIDRs = append(s.CIDRs, ranges...)
		return err
	}
	return fmt.Errorf("kind %q", kind.Kind)
}
