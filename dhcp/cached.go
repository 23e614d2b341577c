// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/spec"
)

// Cached is an attachment with the IPAM plugin dhcp in the cache of a runtime (libcni's
// cniCacheV1). Another keeper, which has leases only in its memory, may have got its lease.
type Cached struct {
	Args   dhcprpc.Args // as its plugin called the keeper
	Result *spec.Result // of the whole chain
}

// cacheFile is the part of a cached result that is read.
type cacheFile struct {
	Kind        string          `json:"kind"`
	ContainerID string          `json:"containerId"`
	Config      []byte          `json:"config"`
	IfName      string          `json:"ifName"`
	NetworkName string          `json:"networkName"`
	NetNS       string          `json:"netns"`
	CNIArgs     [][2]string     `json:"cniArgs"`
	Result      json.RawMessage `json:"result"`
}

// ReadCache reads a cache directory and returns the attachments whose keeper listens on socket.
// Errors of unreadable files are joined and returned beside the others.
func ReadCache(dir, socket string) (list []Cached, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read cached results: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		a, err := readCached(filepath.Join(dir, e.Name()), socket)
		if err != nil {
			errs = append(errs, fmt.Errorf("read cached result %s: %w", e.Name(), err))
		}
		if a != nil {
			list = append(list, *a)
		}
	}
	return list, errors.Join(errs...)
}

func readCached(path, socket string) (*Cached, error) {
	data, err := durable.Read(path)
	if err != nil {
		return nil, err
	}
	var f cacheFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	if f.Kind != "cniCacheV1" {
		return nil, nil
	}
	conf, err := findIPAM(f.Config, 0)
	if err != nil || conf == nil {
		return nil, err
	}
	if ipam, err := dhcprpc.Parse(marshal(conf)); err != nil || ipam.Socket() != socket {
		return nil, err
	}
	conf["name"] = marshal(f.NetworkName)
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(f.Result, &head); err != nil {
		return nil, err
	}
	result, err := spec.ParseResult(f.Result, head.CNIVersion)
	if err != nil {
		return nil, err
	}
	a := &Cached{Result: result, Args: dhcprpc.Args{
		ContainerID: f.ContainerID, NetNS: cachedNetNS(&f, result), IfName: f.IfName, Args: cniArgs(f.CNIArgs), Config: marshal(conf),
	}}
	return a, nil
}

type object = map[string]json.RawMessage

func marshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("cached result: " + err.Error()) // what was decoded can be encoded
	}
	return data
}

// deepest bounds chains in chains (type patchbay, wrap).
const deepest = 4

// findIPAM returns the plugin with IPAM dhcp in a configuration, a list of them, or
// a plugin that holds others.
func findIPAM(config []byte, depth int) (object, error) {
	var conf struct {
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
		Plugins []json.RawMessage `json:"plugins"`
		Plugin  json.RawMessage   `json:"plugin"`
	}
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, err
	}
	if conf.IPAM.Type == "dhcp" {
		out := object{}
		err := json.Unmarshal(config, &out)
		return out, err
	}
	if len(conf.Plugin) > 0 {
		conf.Plugins = append(conf.Plugins, conf.Plugin)
	}
	for _, p := range conf.Plugins {
		if depth == deepest {
			break
		}
		if found, err := findIPAM(p, depth+1); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// cachedNetNS is the namespace of libcni 1.3's file, or else of the result.
func cachedNetNS(f *cacheFile, r *spec.Result) string {
	if f.NetNS != "" {
		return f.NetNS
	}
	for _, i := range r.Interfaces {
		if i.Name == f.IfName && i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return ""
}

func cniArgs(pairs [][2]string) string {
	out := make([]string, len(pairs))
	for i, p := range pairs {
		out[i] = p[0] + "=" + p[1]
	}
	return strings.Join(out, ";")
}
