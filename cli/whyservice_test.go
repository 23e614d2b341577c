// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	policies "github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/services/enforce"
	"github.com/patchbay-net/patchbay/internal/services/saved"
)

// servicesProgram is `services [--save] FILE`. It does what the agent of node n1 does if the cluster has the objects in a file (JSON, one
// object per line): it loads them, or saves them.
func servicesProgram() {
	turn, file := servicesTurn, os.Args[len(os.Args)-1]
	if len(os.Args) > 2 {
		turn = saveServices
	}
	if err := turn(file); err != nil {
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

func saveServices(file string) error {
	s, err := servicesIn(file)
	if err != nil {
		return err
	}
	all := saved.Objects{Node: s.Node, CIDRs: map[string][]netip.Prefix{"kubernetes": s.CIDRs}}
	for _, name := range slices.SortedFunc(maps.Keys(s.Services), func(a, b services.Name) int { return strings.Compare(a.String(), b.String()) }) {
		all.Services, all.Slices = append(all.Services, s.Services[name]), append(all.Slices, s.Slices[name]...)
	}
	var out bytes.Buffer
	path := saved.Path(paths.Default())
	return errors.Join(all.Write(&out), os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, out.Bytes(), 0o600))
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
