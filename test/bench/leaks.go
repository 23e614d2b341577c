// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// leakVersion is a CNI version that has GC.
const leakVersion = "1.1.0"

// leakNetns attaches n containers. It removes their namespaces first, as a node under pressure
// does, and then detaches the containers and runs GC. It returns what is left, by kind.
func (w *worker) leakNetns(chain string, n int) (map[string]int, error) {
	return w.leak(chain, func(l *libcni.NetworkConfigList) error {
		for i := range n {
			name := fmt.Sprintf("leak-%d", i)
			ns, err := sandbox(name)
			if err != nil {
				return err
			}
			rt := w.container(ns)
			if _, err := w.cni.AddNetworkList(context.Background(), l, rt); err != nil {
				return fmt.Errorf("ADD: %w", err)
			}
			if err := removeSandbox(name); err != nil {
				return err
			}
			// An error is not a leak; only what is left afterwards is.
			_ = w.cni.DelNetworkList(context.Background(), l, rt)
		}
		return nil
	})
}

// leakKill starts n ADDs and kills the plugin of each at a random moment. Then it detaches and
// runs GC.
func (w *worker) leakKill(chain string, n int) (map[string]int, error) {
	return w.leak(chain, func(l *libcni.NetworkConfigList) error {
		ns, err := sandbox("leak-kill")
		if err != nil {
			return err
		}
		whole, err := w.cycle(chain)
		if err != nil {
			return err
		}
		for range n {
			rt := w.container(ns)
			ctx, cancel := context.WithTimeout(context.Background(), rand.N(whole.Add.Wall))
			_, _ = w.cni.AddNetworkList(ctx, l, rt)
			cancel()
			time.Sleep(20 * time.Millisecond) // processes that the killed plugin started end by themselves
			_ = w.cni.DelNetworkList(context.Background(), l, rt)
		}
		return nil
	})
}

// leak calls harm and then runs GC. It returns the objects that were not on the node before.
func (w *worker) leak(chain string, harm func(*libcni.NetworkConfigList) error) (map[string]int, error) {
	l, err := w.list(chain, leakVersion)
	if err != nil {
		return nil, err
	}
	if _, err := w.cycle(chain); err != nil { // makes the objects that stay: bridge and base chains
		return nil, err
	}
	before, err := inventory()
	if err != nil {
		return nil, err
	}
	if err := harm(l); err != nil {
		return nil, err
	}
	if err := w.cni.GCNetworkList(context.Background(), l, &libcni.GCArgs{}); err != nil {
		return nil, fmt.Errorf("GC: %w", err)
	}
	settle()
	after, err := inventory()
	if err != nil {
		return nil, err
	}
	for kind, n := range before {
		after[kind] -= n
	}
	return after, nil
}

// inventory counts the objects on this node, by kind.
func inventory() (map[string]int, error) {
	links, err := nl.Retry(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	rules, elements, err := ruleset()
	if err != nil {
		return nil, err
	}
	counts := map[string]int{"links": len(links), "rules": rules, "elements": elements}
	for kind, dir := range map[string]string{"addresses": "/var/lib/cni/networks", "records": "/run/patchbay", "cache": "/var/lib/cni/results"} {
		if counts[kind], err = files(dir); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// ruleset counts the rules, chains and set elements of the whole firewall. A chain counts as a rule.
func ruleset() (rules, elements int, err error) {
	out, err := exec.Command("nft", "-j", "list", "ruleset").Output()
	if err != nil {
		return 0, 0, fmt.Errorf("list ruleset: %w", err)
	}
	var doc struct {
		Nftables []map[string]struct {
			Elem []json.RawMessage `json:"elem"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return 0, 0, fmt.Errorf("read ruleset: %w", err)
	}
	for _, object := range doc.Nftables {
		for kind, body := range object {
			switch kind {
			case "rule", "chain":
				rules++
			case "set", "map":
				elements += len(body.Elem)
			}
		}
	}
	return rules, elements, nil
}

func files(dir string) (n int, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			n++
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return n, err
}
