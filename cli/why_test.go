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
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
)

// policiesProgram is `policies [kernel|mirror|both] FILE`. It does what the agent of node n1 does if the
// cluster has the objects in a file (JSON, one object per line).
func policiesProgram() {
	if err := policiesTurn(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func policiesTurn(where, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	s := &policy.State{Node: "n1"}
	for line := range strings.Lines(string(data)) {
		if err := addObject(s, []byte(line)); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	if s.Local, _, err = enforce.NodeAddresses(); err != nil {
		return err
	}
	d := policy.NewDecider(s)
	if where != "kernel" {
		_, err = mirror.Write(paths.Default(), d)
	}
	if where != "mirror" {
		fw := nft.Open("")
		e := enforce.New(fw, enforce.Options{})
		err = errors.Join(err, e.Load(context.Background(), d.Program, nil), fw.Close())
	}
	return err
}

func addObject(s *policy.State, line []byte) error {
	var kind struct{ Kind string }
	if err := json.Unmarshal(line, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Namespace":
		return appended(&s.Namespaces, policy.ParseNamespace, line)
	case "Node":
		return appended(&s.Nodes, policy.ParseNode, line)
	case "Pod":
		return appended(&s.Pods, policy.ParsePod, line)
	case "NetworkPolicy":
		return appended(&s.Policies, policy.ParseNetworkPolicy, line)
	case "ClusterNetworkPolicy":
		return appended(&s.ClusterPolicies, policy.ParseClusterNetworkPolicy, line)
	}
	return fmt.Errorf("kind %q", kind.Kind)
}

func appended[T any](list *[]T, parse func([]byte) (T, error), line []byte) error {
	o, err := parse(line)
	*list = append(*list, o)
	return err
}
