// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"sync"
	"time"
)

// dockerAPI talks to a dockerd. It makes the calls for which `docker run -d` and `docker rm -f`
// wait, but does not measure the start of the client program.
type dockerAPI struct{ http *http.Client }

// overUnix returns an HTTP transport over a Unix socket.
func overUnix(socket string) *http.Transport {
	return &http.Transport{
		MaxIdleConnsPerHost: 2 * dockerCallers,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
}

// call sends in, if any, and decodes the answer into out, if any. The path has no version, so
// dockerd uses its newest one.
func (d *dockerAPI) call(method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, "http://docker"+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(data))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

func (d *dockerAPI) version() (string, error) {
	var v struct{ Version string }
	err := d.call("GET", "/version", nil, &v)
	return v.Version, err
}

// network makes a network. For Docker's bridge, driver is "".
func (d *dockerAPI) network(name, driver, conf string) error {
	in := map[string]any{"Name": name, "Driver": "bridge"}
	if driver != "" {
		in["Driver"], in["IPAM"], in["Options"] = driver, map[string]any{"Driver": "null"}, map[string]string{"cni.network": conf}
	}
	return d.call("POST", "/networks/create", in, nil)
}

// run makes and starts a container that does nothing but sleep.
func (d *dockerAPI) run(s dockerSubject) (id string, err error) {
	host := map[string]any{"NetworkMode": s.network}
	in := map[string]any{"Image": "bb", "Cmd": []string{"sleep", "1000"}, "HostConfig": host}
	if s.publish {
		in["ExposedPorts"] = map[string]any{"80/tcp": struct{}{}}
		host["PortBindings"] = map[string]any{"80/tcp": []map[string]string{{"HostPort": "8080"}}}
	}
	var made struct{ ID string }
	if err := d.call("POST", "/containers/create", in, &made); err != nil {
		return "", err
	}
	return made.ID, d.call("POST", "/containers/"+made.ID+"/start", nil, nil)
}

func (d *dockerAPI) remove(id string) error {
	return d.call("DELETE", "/containers/"+id+"?force=1", nil, nil)
}

// callTimer is a proxy in front of a driver. It times the driver's answers.
type callTimer struct {
	server *http.Server
	mu     sync.Mutex
	calls  map[string]sample
}

// newCallTimer listens at front and passes calls to the driver at back.
func newCallTimer(front, back string) (*callTimer, error) {
	_ = os.Remove(front)
	l, err := net.Listen("unix", front)
	if err != nil {
		return nil, err
	}
	t := &callTimer{calls: map[string]sample{}}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "driver"})
	proxy.Transport = overUnix(back)
	t.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		proxy.ServeHTTP(w, r)
		t.add(path.Ext(r.URL.Path), time.Since(begin))
	})}
	go t.server.Serve(l)
	return t, nil
}

func (t *callTimer) add(method string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[method] = append(t.calls[method], cost{Wall: took})
}

// forget returns the times that it has collected, and deletes them.
func (t *callTimer) forget() map[string]sample {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.calls
	t.calls = map[string]sample{}
	return old
}
