// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmplugin"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// api serves the part of Docker's API that network drivers read: networks with their names and
// labels, containers with their networks, and events. It shows what the plugin cnm recorded, and
// changes nothing. A driver that reads Docker's API must be started with
// DOCKER_HOST=unix:///run/patchbay/docker.sock.
type api struct{ state *remote.Dir }

// apiVersion is the API version that api reports. Today's clients accept no older version, and
// all drivers support this one.
const apiVersion = "1.44"

// headerTime limits how long a client may take to send the header of a request.
const headerTime = 2 * time.Second

// dockerAPI serves the API until a signal ends the process.
func (a *app) dockerAPI(ctx context.Context, args []string) error {
	path := filepath.Join(a.paths.Run, "docker.sock")
	if len(args) > 0 {
		path = args[0]
	} else if err := durable.MakeDir(a.paths.Run); err != nil {
		return err
	}
	l, err := cnm.ListenUnix(path, -1)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: &api{remote.Open(a.paths.State)}, ReadHeaderTimeout: headerTime}
	stop := context.AfterFunc(ctx, func() { srv.Close() }) //nolint:errcheck // Serve returns the error
	defer stop()
	err = srv.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve %s: %w", path, err)
}

// ServeHTTP answers GET, and HEAD for /_ping. For an unknown path it answers 404. A path may
// begin with a version, such as /v1.43. Docker does the same.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := unversioned(r.URL.Path)
	w.Header().Set("Api-Version", apiVersion)
	w.Header().Set("Ostype", "linux")
	switch kind, id, below := strings.Cut(strings.TrimPrefix(path, "/"), "/"); {
	case path == "/_ping" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		w.Write([]byte("OK")) //nolint:errcheck // fails only if the client is gone
	case r.Method != http.MethodGet:
		fail(w, http.StatusForbidden, "this is patchbay-cnm in Docker's place: it only serves GET")
	case path == "/version":
		write(w, http.StatusOK, map[string]string{"ApiVersion": apiVersion, "MinAPIVersion": "1.24", "Version": "patchbay-cnm", "Os": "linux"})
	case path == "/info":
		a.show(w, showInfo)
	case path == "/networks":
		a.show(w, showNetworks)
	case below && kind == "networks":
		a.show(w, func(list []network) any { return showNetwork(list, id) })
	case path == "/containers/json":
		a.show(w, showContainers)
	case below && kind == "containers":
		a.show(w, func(list []network) any { return showContainer(list, strings.TrimSuffix(id, "/json")) })
	case path == "/events":
		a.events(w, r)
	default:
		fail(w, http.StatusNotFound, "page not found")
	}
}

// unversioned removes a version such as "/v1.43" from the beginning of a path.
func unversioned(path string) string {
	if rest, ok := strings.CutPrefix(path, "/v1."); ok {
		if version, rest, ok := strings.Cut(rest, "/"); ok && strings.Trim(version, "0123456789") == "" {
			return "/" + rest
		}
	}
	return path
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) //nolint:errcheck // fails only if the client is gone
}

func fail(w http.ResponseWriter, status int, message string) {
	write(w, status, map[string]string{"message": message})
}

// missing is the error for an object that does not exist. It has Docker's text.
type missing string

// show reads all networks and answers a request with the part of them that the function part
// returns.
func (a *api) show(w http.ResponseWriter, part func([]network) any) {
	list, ok := a.list(w)
	if !ok {
		return
	}
	v := part(list)
	if text, ok := v.(missing); ok {
		fail(w, http.StatusNotFound, string(text))
		return
	}
	write(w, http.StatusOK, v)
}

// list reads all networks. If list fails, it answers the request with the error, and ok is false.
func (a *api) list(w http.ResponseWriter) (list []network, ok bool) {
	list, err := a.read()
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
	}
	return list, err == nil
}

// network is a network with its attachments.
type network struct {
	name string
	*cnmplugin.Network
	members []*remote.DriverState
}

func (a *api) read() (list []network, err error) {
	names, err := a.state.Names(remote.Networks)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		n := network{name: name}
		if n.Network, err = remote.Load[cnmplugin.Network](a.state, remote.Networks, name); err != nil || n.Network == nil {
			continue // an ADD is creating it, or its file was cut short; Docker shows no such network either
		}
		if n.members, _, err = a.state.List(name, cnmplugin.Plugin.Name); err != nil {
			return nil, err
		}
		n.members = slices.DeleteFunc(n.members, func(m *remote.DriverState) bool { return m.Ended })
		list = append(list, n)
	}
	return list, nil
}

// poll is how often events looks for containers that joined or left a network.
const poll = 500 * time.Millisecond

// events reports the containers that join and leave a network, until the client disconnects.
// While events cannot read the state, it reports nothing.
func (a *api) events(w http.ResponseWriter, r *http.Request) {
	list, ok := a.list(w)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	if flush.Flush() != nil {
		return
	}
	before := joined(list)
	for tick := time.NewTicker(poll); ; {
		select {
		case <-r.Context().Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		list, err := a.read()
		if err != nil {
			continue
		}
		now := joined(list)
		for _, e := range append(events("connect", now, before), events("disconnect", before, now)...) {
			if json.NewEncoder(w).Encode(e) != nil {
				return
			}
		}
		if flush.Flush() != nil {
			return
		}
		before = now
	}
}
