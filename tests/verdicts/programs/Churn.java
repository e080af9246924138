/** A small heap that is nearly full: the collector runs all the time. */
public class Churn {
    static final Object[] kept = new Object[400000];

    public static void main(String[] words) {
        for (int turn = 0; ; turn++) {
            Object[] page = new Object[8];
            for (int i = 0; i < page.length; i++) page[i] = new int[] {turn, i};
            kept[(turn * 31 & Integer.MAX_VALUE) % kept.length] = page;
        }
    }
}
