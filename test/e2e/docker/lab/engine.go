// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"
)

// Socket returns the path of the socket at which dockerd serves its API.
func (l *Lab) Socket() string { return filepath.Join(filepath.Dir(l.DataRoot()), "docker.sock") }

// Post calls dockerd's API; the call must succeed. Use it for requests that need a newer client:
// Debian's docker client is older than the newest dockerd and lacks some flags.
func (l *Lab) Post(path string, body any) {
	l.Helper()
	b, err := json.Marshal(body)
	must(l, err)
	ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://docker"+path, bytes.NewReader(b))
	must(l, err)
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", l.Socket())
	}}}
	resp, err := client.Do(req)
	must(l, err)
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode >= http.StatusBadRequest {
		l.Fatalf("POST %s %s: %s: %s", path, b, resp.Status, text)
	}
}
