// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package dockerapi stands in for the part of Docker's API that network drivers read:
// networks with their names and labels, containers with their networks, and events. It
// reads what the plugin cnm recorded and changes nothing. A driver that asks Docker gets
// DOCKER_HOST=unix:///run/patchbay/docker.sock.
package dockerapi

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/cnmplugin"
	"github.com/patchbay-net/patchbay/cnm/remote"
)

// API is the http.Handler. Paths may begin with a version, such as /v1.43.
type API struct {
	Store *remote.Store
}

// Version is the API version that it reports: the oldest that today's clients accept and
// all drivers support.
const Version = "1.44"

// ServeHTTP answers GET, and HEAD of /_ping; an unknown path is 404, as with Docker.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := unversioned(r.URL.Path)
	w.Header().Set("Api-Version", Version)
	w.Header().Set("Ostype", "linux")
	switch id, rest := split(path); {
	case path == "/_ping" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		w.Write([]byte("OK")) //nolint:errcheck // fails only if the caller is gone
	case r.Method != http.MethodGet:
		fail(w, http.StatusForbidden, "this is patchbay-cnm in Docker's place: it only serves GET")
	case path == "/version":
		write(w, map[string]string{"ApiVersion": Version, "MinAPIVersion": "1.24", "Version": "patchbay-cnm", "Os": "linux"})
	case path == "/info":
		a.info(w)
	case path == "/networks":
		a.networks(w)
	case rest == "networks":
		a.network(w, id)
	case path == "/containers/json":
		a.containers(w)
	case rest == "containers":
		a.container(w, strings.TrimSuffix(id, "/json"))
	case path == "/events":
		a.events(w, r)
	default:
		fail(w, http.StatusNotFound, "page not found")
	}
}

// unversioned removes "/v1.43" from a path.
func unversioned(path string) string {
	if rest, ok := strings.CutPrefix(path, "/v1."); ok {
		if version, rest, ok := strings.Cut(rest, "/"); ok && strings.Trim(version, "0123456789") == "" {
			return "/" + rest
		}
	}
	return path
}

// split splits "/networks/x" into id and kind.
func split(path string) (id, kind string) {
	kind, id, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok {
		return "", ""
	}
	return id, kind
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v) //nolint:errcheck // fails only if the caller is gone
}

func fail(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"message": message}) //nolint:errcheck // fails only if the caller is gone
}

// network is a network with its attachments.
type network struct {
	name string
	*cnmplugin.Network
	members []*remote.Attachment
}

// list is read; on an error it answers with that (ok is false).
func (a *API) list(w http.ResponseWriter) (list []network, ok bool) {
	list, err := a.read()
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
	}
	return list, err == nil
}

func (a *API) read() (list []network, err error) {
	names, err := a.Store.Names(remote.Networks)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		n := network{name: name, Network: new(cnmplugin.Network)}
		ok, err := a.Store.Load(remote.Networks, name, n.Network)
		if err != nil || !ok {
			continue // it is being made, or torn: Docker does not show such networks either
		}
		if n.members, err = a.Store.Living(name, cnmplugin.Plugin.Name); err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// flag reads a boolean option of CreateNetwork.
func (n network) flag(key string) bool {
	v, err := n.Request.Options.Flag(key, false)
	return err == nil && v
}

// docker is the network in Docker's format.
func (n network) docker() map[string]any {
	options, err := n.Request.Options.Strings()
	if err != nil || options == nil {
		options = map[string]string{}
	}
	var pools []map[string]string
	for _, d := range append(append([]cnm.IPAMData{}, n.Request.IPv4Data...), n.Request.IPv6Data...) {
		pool := map[string]string{"Subnet": d.Pool.String()}
		if d.Gateway.IsValid() {
			pool["Gateway"] = d.Gateway.Addr().String()
		}
		pools = append(pools, pool)
	}
	labels := n.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	containers := map[string]any{}
	for _, m := range n.members {
		containers[m.ContainerID] = map[string]string{
			"Name": m.ContainerID, "EndpointID": m.EndpointID, "MacAddress": has(m).MacAddress,
			"IPv4Address": text(has(m).Address), "IPv6Address": text(has(m).AddressIPv6),
		}
	}
	return map[string]any{
		"Name": n.name, "Id": n.Request.NetworkID, "Scope": cnm.ScopeLocal, "Driver": n.Driver.String(),
		"EnableIPv4": n.flag(cnm.OptionEnableIPv4), "EnableIPv6": n.flag(cnm.OptionEnableIPv6), "Internal": n.flag(cnm.OptionInternal),
		"Attachable": false, "Ingress": false, "ConfigOnly": false,
		"IPAM":    map[string]any{"Driver": "default", "Options": map[string]string{}, "Config": pools},
		"Options": options, "Labels": labels, "Containers": containers,
	}
}
