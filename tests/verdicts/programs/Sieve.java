/** A sieve of primes in one array. */
public class Sieve {
    public static void main(String[] words) {
        boolean[] composite = new boolean[1 << 16];
        for (long sum = 0; ; ) {
            java.util.Arrays.fill(composite, false);
            for (int n = 2; n < composite.length; n++) {
                if (composite[n]) continue;
                sum += n;
                for (int m = 2 * n; m < composite.length; m += n) composite[m] = true;
            }
            if (sum == 1) return;
        }
    }
}
