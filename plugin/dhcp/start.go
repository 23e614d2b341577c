// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// program is the name of the program that keeps leases.
const program = "patchbayd"

// findKeeper returns the path of patchbayd. findKeeper looks next to this program, in the PATH of
// an environment, and where packages install it.
func findKeeper(environ []string) (string, error) {
	var dirs []string
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	for _, kv := range environ {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			dirs = append(dirs, filepath.SplitList(path)...)
		}
	}
	var candidates []string
	for _, dir := range append(dirs, "/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin") {
		if filepath.IsAbs(dir) {
			candidates = append(candidates, filepath.Join(dir, program))
		}
	}
	for _, c := range candidates {
		if path, err := exec.LookPath(c); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find %s: not in %v: %w", program, candidates, os.ErrNotExist)
}

// startKeeper starts a keeper and returns when the keeper's socket exists. The keeper detaches
// itself. If several processes start one at once, only one keeper remains.
func startKeeper(ctx context.Context, environ []string, socket string) error {
	path, err := findKeeper(environ)
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "dhcp", "--detach", "--socketpath", socket)
	cmd.Env, cmd.Stderr = environ, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start %s: %w: %s", path, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// Daemon implements `dhcp daemon`. The reference's service units start the reference's keeper
// with this command. Daemon turns this process into patchbayd with the same arguments. It returns
// only if that fails; then it returns the exit status.
func Daemon(args []string, stderr io.Writer) int {
	path, err := findKeeper(os.Environ())
	if err == nil {
		err = syscall.Exec(path, append([]string{program, name}, args...), os.Environ())
	}
	fmt.Fprintf(stderr, "dhcp: error: start keeper: %v\n", err) //nolint:errcheck // there is nowhere to report it
	return 1
}
